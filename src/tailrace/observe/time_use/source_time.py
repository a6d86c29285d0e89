"""Seconds of rollout, rewards and training for each source of prompts: a pure fold over the journal.

A source is the training set or an evaluation set. Seconds in which only responses of evaluations run are no seconds of
the training set. Training sets that are mixed name the part of the data that a response belongs to with its score:
those are counted by responses, tokens and seconds of computed scores.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.core import events as ev
from tailrace.observe.shared_fold.news import News, TimeSinceLast
from tailrace.observe.shared_fold.records import ResponseRecord
from tailrace.observe.shared_fold.run_fold import RunFold

_DATA_SOURCE = "source/"
"""How the names of scores begin that tell to which part of the data a response belongs."""


@dataclass(slots=True, kw_only=True)
class SourceSeconds:
    rollout_s: float = 0.0
    """Seconds in which at least one of its responses was generated."""
    hidden_s: float = 0.0
    """Seconds in which its scores were awaited while responses were generated or the trainer worked."""
    exposed_s: float = 0.0
    """Seconds in which its scores were awaited and nothing else went on."""
    training_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class DataSeconds:
    """Scored responses of one part of the data."""

    num_responses: int = 0
    num_tokens: int = 0
    reward_s: float = 0.0
    """Seconds in which their scores were computed, all parts added up."""


@dataclass(slots=True)
class SourceTimes:
    """Feed it a journal from its first entry."""

    run: RunFold
    """A fold that several accounts share; whoever shares it calls ``hear``."""
    seconds: dict[str, SourceSeconds] = field(default_factory=dict)
    """By source; the training set first."""
    data: dict[str, DataSeconds] = field(default_factory=dict)
    """By name of the part of the data; empty if the training set is not mixed."""

    def hear(self, news: News) -> None:
        match news.message:
            case TimeSinceLast(since=since, is_outage=False):
                self._elapse(news.now - since)
            case ev.RunStarted(schedule=schedule):
                names = [schedule.train_source] * schedule.trains + [each.name for each in schedule.eval_sets]
                self.seconds = {name: SourceSeconds() for name in names}
            case ev.StepTrained(seconds=seconds):
                self._of(self.run.train_source).training_s += seconds
        for _, response in news.scored:
            if response is not None and self.run.is_training(response):
                self._note(response)

    def _elapse(self, seconds: float) -> None:
        run = self.run
        for name in run.sources_generating() if run.generating else ():
            self._of(name).rollout_s += seconds
        for name in run.scores.awaited_sources():
            if run.is_evaluating and name == run.train_source:
                continue
            if run.scores.is_alone:
                self._of(name).exposed_s += seconds
            else:
                self._of(name).hidden_s += seconds

    def _note(self, response: ResponseRecord) -> None:
        for name, _ in response.extras:
            if name.startswith(_DATA_SOURCE):
                found = self.data.setdefault(name.removeprefix(_DATA_SOURCE), DataSeconds())
                found.num_responses += 1
                found.num_tokens += response.length
                found.reward_s += response.reward_s

    def _of(self, name: str) -> SourceSeconds:
        return self.seconds.setdefault(name, SourceSeconds())
