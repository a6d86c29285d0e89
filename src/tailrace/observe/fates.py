"""What became of every prompt and every token: a pure fold over the journal.

Each visit of a prompt is one *group*. A group is `in progress` from its offer on, then

    trained      an optimizer step used at least one of its responses
    evaluated    an evaluation closed with it
    filtered     all its scores are equal and the schedule leaves such groups out
    dropped      given up when its round ended, or none of its responses could be scored
    deferred     aborted when its round ended; it waits for a long round, where it is in progress again

and every generated token belongs to exactly one group. Tokens are *wasted* when the response they belong to was given
up. A response lost with its instance keeps the tokens that were reported; tokens that never were reported are in no
journal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, TrajectoryId
from tailrace.core.journal import Entry
from tailrace.core.outcomes import Outcome
from tailrace.core.trajectory import Finish

IN_PROGRESS, TRAINED, EVALUATED = "in progress", "trained", "evaluated"
FILTERED, DROPPED, DEFERRED = "filtered", "dropped", "deferred"
OFFERED = "offered"
"""In totals: every group, whatever became of it."""


@dataclass(slots=True, kw_only=True)
class ResponseNote:
    """One response, as far as the journal knows it."""

    length: int = 0
    finish: Finish | None = None
    outcome: Outcome | None = None
    score: float = 0.0
    detail: str = ""
    is_trained: bool = False
    is_given_up: bool = False


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
    """Rounds it went on in with tokens of an earlier one."""
    responses: dict[TrajectoryId, ResponseNote] = field(default_factory=dict)

    @property
    def num_wasted(self) -> int:
        """Tokens of responses that were given up."""
        return sum(note.length for note in self.responses.values() if note.is_given_up)

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
class Totals:
    num_groups: int
    num_prompts: int
    """Different prompts among them."""
    num_responses: int
    num_tokens: int
    num_wasted: int
    """Of these tokens, those of responses that were given up."""


@dataclass(slots=True, kw_only=True)
class StepLengths:
    """Lengths of the responses of one step."""

    step: int
    generated: list[int]
    """Training responses that ended since the step before."""
    trained: list[int]


class Fates:
    """Feed it a journal from its first entry."""

    def __init__(self) -> None:
        self.groups: dict[GroupId, Fate] = {}
        """In the order of their offers."""
        self.lengths: list[StepLengths] = []
        self.train_source = "train"
        self.version = 0
        self._training: tuple[TrajectoryId, ...] = ()
        self._ended: list[int] = []
        self._keeps_tokens = False
        """Deferred groups keep what they have."""
        self._group_size = 1

    def feed(self, entry: Entry) -> None:
        self._event(entry.event, entry.now)
        for command in entry.commands:
            self._command(command)

    def _command(self, command: do.Command) -> None:
        match command:
            case do.TrainStep(trajectories=trajectories):
                self._training = trajectories
            case do.CloseEvaluation(version=version, groups=groups):
                self._settle(groups, EVALUATED, version)
            case do.LeaveOut(filtered=filtered, dropped=dropped, restarted=restarted):
                self._give_up(filtered, FILTERED)
                self._give_up(dropped, DROPPED)
                self._give_up(restarted, IN_PROGRESS)
            case do.OpenRound(resumed=resumed, restarted=restarted):
                self._give_up(restarted, IN_PROGRESS)
                for group in resumed:
                    self.groups[group].state = IN_PROGRESS
                    self.groups[group].num_resumed += 1
            case do.CloseRound(deferred=deferred, dropped=dropped):
                self._give_up(dropped, DROPPED)
                for group in deferred:
                    self.groups[group].state = DEFERRED
                    self.groups[group].num_deferred += 1
                if not self._keeps_tokens:
                    self._give_up(deferred, DEFERRED)
            case do.Abort(trajectories=trajectories) | do.CancelScores(trajectories=trajectories):
                for trajectory in trajectories:
                    self._note(trajectory).is_given_up = True

    def _give_up(self, groups: Iterable[GroupId], state: str) -> None:
        for group in groups:
            self.groups[group].state = state
            for note in self.groups[group].responses.values():
                note.is_given_up = True

    def totals(self, *, is_training: bool) -> dict[str, Totals]:
        """All that were offered, then by state; of training groups or of all others. The states add up to the offer."""
        chosen = [f for f in self.groups.values() if (f.group.source == self.train_source) == is_training]
        states = (TRAINED, FILTERED, DROPPED, DEFERRED, IN_PROGRESS) if is_training else (EVALUATED, IN_PROGRESS)
        by_state = {state: _total([fate for fate in chosen if fate.state == state]) for state in states}
        return {OFFERED: _total(chosen), **by_state}

    def settled(self) -> list[Fate]:
        """Groups all of whose responses have their reward, in the order of their offers."""
        return [fate for fate in self.groups.values() if self._is_settled(fate)]

    def _event(self, event: ev.Event, now: float) -> None:
        match event:
            case ev.RunStarted(schedule=schedule):
                self.train_source, self._group_size = schedule.train_source, schedule.group_size
                self._keeps_tokens = schedule.keeps_deferred_tokens
            case ev.PromptsOffered(source=source, prompts=prompts):
                for epoch, prompt in prompts:
                    self._offer(GroupId(source, epoch, prompt), now)
            case ev.RolloutReported(progressed=progressed, finished=finished):
                for part in progressed:
                    self._note(part.trajectory).length = part.length
                for end in finished:
                    note = self._note(end.trajectory)
                    note.length = end.length
                    if end.finish is Finish.INTERRUPTED:
                        continue
                    note.finish = end.finish
                    if end.trajectory.group.source == self.train_source:
                        self._ended.append(end.length)
            case ev.ResponsesAborted(aborted=aborted):
                for lost in aborted:
                    note = self._note(lost.trajectory)
                    note.length, note.is_given_up = max(note.length, lost.length), True
            case ev.ResponsesScored(scores=scores):
                for scored in scores:
                    self._score(scored)
            case ev.StepTrained(version=version):
                self._trained(version)

    def _offer(self, group: GroupId, now: float) -> None:
        self.groups.setdefault(group, Fate(group=group, offered_at=now, offered_version=self.version))

    def _note(self, trajectory: TrajectoryId) -> ResponseNote:
        return self.groups[trajectory.group].responses.setdefault(trajectory, ResponseNote())

    def _score(self, scored: ev.Scored) -> None:
        if scored.outcome is Outcome.CANCELLED:
            return  # nobody wanted to know it: neither a score of 0 nor a failure
        note = self._note(scored.trajectory)
        note.outcome, note.detail = scored.outcome, scored.detail
        note.score = scored.score if scored.outcome is Outcome.OK else 0.0

    def _trained(self, version: int) -> None:
        notes = [self._note(trajectory) for trajectory in self._training]
        for group in {trajectory.group for trajectory in self._training}:
            for note in self.groups[group].responses.values():
                note.is_given_up = True
        for note in notes:
            note.is_trained, note.is_given_up = True, False
        trained = [note.length for note in notes]
        self.lengths.append(StepLengths(step=version, generated=self._ended, trained=trained))
        self._settle({trajectory.group for trajectory in self._training}, TRAINED, version)
        self.version, self._training, self._ended = version, (), []

    def _settle(self, groups: Iterable[GroupId], state: str, step: int) -> None:
        for group in groups:
            self.groups[group].state, self.groups[group].step = state, step

    def _is_settled(self, fate: Fate) -> bool:
        """Whether every response of a training group has its reward, or will never have one."""
        return sum(note.outcome is not None for note in fate.responses.values()) >= self._group_size


def _total(fates: list[Fate]) -> Totals:
    return Totals(
        num_groups=len(fates),
        num_prompts=len({(fate.group.source, fate.group.prompt) for fate in fates}),
        num_responses=sum(note.finish is not None for fate in fates for note in fate.responses.values()),
        num_tokens=sum(fate.num_tokens for fate in fates),
        num_wasted=sum(fate.num_wasted for fate in fates),
    )
