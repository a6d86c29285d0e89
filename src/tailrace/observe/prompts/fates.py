"""What became of every prompt and every token: a pure fold over the journal.

Each visit of a prompt is one *group*. A group is `in progress` from its offer on, then

    trained      an optimizer step used at least one of its responses
    evaluated    an evaluation closed with it
    filtered     all its scores are equal and the schedule filters such groups
    dropped      dropped when its round ended, or none of its responses could be scored
    deferred     aborted when its round ended; it waits for a later round, where it is in progress again

and every generated token belongs to exactly one group. Tokens are *wasted* when their response is dropped. A response
that loses its instance keeps the tokens that were reported; tokens that never were reported are not in the journal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.journal import Entry
from tailrace.core.outcomes import Outcome, Part
from tailrace.core.responses.response import Finish
from tailrace.observe.metrics.natural_lengths import LengthSample
from tailrace.observe.shared_fold.news import News
from tailrace.observe.shared_fold.records import ResponseRecord
from tailrace.observe.shared_fold.run_fold import RunFold

IN_PROGRESS, TRAINED, EVALUATED = "in progress", "trained", "evaluated"
FILTERED, DROPPED, DEFERRED = "filtered", "dropped", "deferred"
OFFERED = "offered"
"""Key of the totals over all groups."""


@dataclass(slots=True, kw_only=True)
class ResponseNote:
    """What the journal says about one response."""

    length: int = 0
    finish: Finish | None = None
    outcome: Outcome | None = None
    score: float = 0.0
    detail: str = ""
    failed_part: Part | None = None
    """The part of its score that failed."""
    is_trained: bool = False
    is_dropped: bool = False


@dataclass(slots=True, kw_only=True)
class Fate:
    """One group."""

    group: GroupId
    offered_at: float
    offered_version: int
    state: str = IN_PROGRESS
    step: int | None = None
    """The step that trained it, or the version that was evaluated."""
    num_deferred: int = 0
    num_resumed: int = 0
    """Number of rounds in which it continued with tokens of an earlier round."""
    responses: dict[ResponseId, ResponseNote] = field(default_factory=dict)

    @property
    def num_wasted(self) -> int:
        """Tokens of dropped responses."""
        return sum(note.length for note in self.responses.values() if note.is_dropped)

    @property
    def num_tokens(self) -> int:
        return sum(note.length for note in self.responses.values())

    @property
    def num_failed(self) -> int:
        return sum(note.outcome not in (None, Outcome.OK) for note in self.responses.values())

    @property
    def mean_score(self) -> float | None:
        scores = [note.score for note in self.responses.values() if note.outcome is not None]
        return fmean(scores) if scores else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FateTotals:
    num_groups: int
    num_prompts: int
    """Number of different prompts among the groups."""
    num_responses: int
    num_tokens: int
    num_wasted: int
    """Tokens of dropped responses."""


@dataclass(slots=True, kw_only=True)
class StepLengths:
    """Lengths of the responses of one step."""

    step: int
    generated: list[int]
    """Training responses that ended since the step before."""
    trained: list[int]
    observed: LengthSample = field(default_factory=LengthSample)
    """Training responses that left progress since the step before, with those that were stopped before they ended."""


class Fates:
    """Feed it a journal from its first entry."""

    def __init__(self, run: RunFold | None = None) -> None:
        """``run``: a fold that several accounts share; whoever shares it calls ``hear`` and not ``feed``."""
        self._run = run or RunFold()
        self.groups: dict[GroupId, Fate] = {}
        """In the order of their offers."""
        self.lengths: list[StepLengths] = []
        self._ended: list[int] = []
        self._observed = LengthSample()

    @property
    def train_source(self) -> str:
        return self._run.train_source

    @property
    def version(self) -> int:
        return self._run.state.version

    def feed(self, entry: Entry) -> None:
        for news in self._run.feed(entry):
            self.hear(news)

    def hear(self, news: News) -> None:
        self._hear_responses(news)
        match news.message:
            case ev.PromptsOffered(source=source, prompts=prompts):
                for epoch, prompt in prompts:
                    self._offer(GroupId(source, epoch, prompt), news.now)
            case ev.StepTrained(version=version):
                self._trained(version, news)
            case do.CloseEvaluation(version=version, groups=groups):
                self._settle(groups, EVALUATED, version)
            case do.ReportDropped(filtered=filtered, dropped=dropped, restarted=restarted):
                self._set_state(filtered, FILTERED)
                self._set_state(dropped, DROPPED)
                self._set_state(restarted, IN_PROGRESS)
            case do.OpenRound(resumed=resumed, restarted=restarted):
                self._set_state((*restarted, *resumed), IN_PROGRESS)
                for group in resumed:
                    self.groups[group].num_resumed += 1
            case do.CloseRound(deferred=deferred, late=late, dropped=dropped):
                self._set_state(dropped, DROPPED)
                self._set_state((*deferred, *late), DEFERRED)
                for group in (*deferred, *late):
                    self.groups[group].num_deferred += 1

    def _hear_responses(self, news: News) -> None:
        for response, _ in news.heard:
            self._note(response.id).length = response.length
        for response in news.ended:
            self._note(response.id).finish = response.finish
            if self._run.is_training(response):
                self._ended.append(response.length)
        for response in news.dropped:
            self._note(response.id).is_dropped = True
        for scored, found in news.scored:
            self._score(scored)
            if scored.outcome not in (Outcome.OK, Outcome.ABORTED):
                self._note(scored.response).failed_part = _failed_part(scored, found, news)
        if news.gone or news.trained:
            self._observed.add(filter(self._run.is_training, (*news.trained, *news.gone)))

    def _set_state(self, groups: Iterable[GroupId], state: str) -> None:
        for group in groups:
            self.groups[group].state = state

    def totals(self, *, is_training: bool) -> dict[str, FateTotals]:
        """Totals of all groups offered, then of each state; of training groups or of the others. The states add up."""
        chosen = [f for f in self.groups.values() if (f.group.source == self.train_source) == is_training]
        states = (TRAINED, FILTERED, DROPPED, DEFERRED, IN_PROGRESS) if is_training else (EVALUATED, IN_PROGRESS)
        by_state = {state: _total([fate for fate in chosen if fate.state == state]) for state in states}
        return {OFFERED: _total(chosen), **by_state}

    def settled(self) -> list[Fate]:
        """Groups whose responses all have their reward, in the order of their offers."""
        return [fate for fate in self.groups.values() if self._is_settled(fate)]

    def _offer(self, group: GroupId, now: float) -> None:
        self.groups.setdefault(group, Fate(group=group, offered_at=now, offered_version=self.version))

    def _note(self, response: ResponseId) -> ResponseNote:
        return self.groups[response.group].responses.setdefault(response, ResponseNote())

    def _score(self, scored: ev.Scored) -> None:
        if scored.outcome is Outcome.ABORTED:
            return  # nobody wanted to know it: neither a score of 0 nor a failure
        note = self._note(scored.response)
        note.outcome, note.detail = scored.outcome, scored.detail
        note.score = scored.score if scored.outcome is Outcome.OK else 0.0

    def _trained(self, version: int, news: News) -> None:
        for response in news.trained:
            self._note(response.id).is_trained = True
        trained = [response.length for response in news.trained]
        lengths = StepLengths(step=version, generated=self._ended, trained=trained, observed=self._observed)
        self.lengths.append(lengths)
        self._settle({response.id.group for response in news.trained}, TRAINED, version)
        self._ended, self._observed = [], LengthSample()

    def _settle(self, groups: Iterable[GroupId], state: str, step: int) -> None:
        for group in groups:
            self.groups[group].state, self.groups[group].step = state, step

    def _is_settled(self, fate: Fate) -> bool:
        """Whether every response of a training group has its reward, or will never have one."""
        group_size = self._run.state.schedule.group_size if self._run.state.schedule is not None else 1
        return sum(note.outcome is not None for note in fate.responses.values()) >= group_size


def _total(fates: list[Fate]) -> FateTotals:
    return FateTotals(
        num_groups=len(fates),
        num_prompts=len({(fate.group.source, fate.group.prompt) for fate in fates}),
        num_responses=sum(note.finish is not None for fate in fates for note in fate.responses.values()),
        num_tokens=sum(fate.num_tokens for fate in fates),
        num_wasted=sum(fate.num_wasted for fate in fates),
    )


def _failed_part(scored: ev.Scored, response: ResponseRecord | None, news: News) -> Part | None:
    """The first part that ended as the score did; that of the message, if the response was dropped."""
    if response is None:
        return news.message.part if isinstance(news.message, ev.ResponsesScored) else None
    failed = [each.part for each in response.parts if each.outcome is scored.outcome]
    return min(failed, key=list(Part).index, default=None)
