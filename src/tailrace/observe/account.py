"""Everything a journal says about its run, from one pass over it. The report and the doctor read this."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.errors import CoreError
from tailrace.core.ids import InstanceId
from tailrace.core.journal import Entry
from tailrace.core.schedule import Schedule
from tailrace.observe.metrics.rows import Metrics, Row
from tailrace.observe.prompts.fates import Fates
from tailrace.observe.quantities import quantity
from tailrace.observe.shared_fold.news import News, TimeSinceLast
from tailrace.observe.shared_fold.run_fold import RunFold
from tailrace.observe.time_use.source_time import SourceTimes
from tailrace.observe.time_use.step_parts import StepParts
from tailrace.observe.time_use.timeline import Timeline

MISFITS = (ValueError, CoreError, LookupError, TypeError, AttributeError, ArithmeticError, AssertionError)
"""Errors that a fold raises when an entry contradicts the entries before it."""


class Unfollowable(ValueError):
    """An entry can be read but does not fit those before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostInstance:
    """An instance that went away."""

    at: float
    instance: InstanceId
    reason: str


class Account:
    """Feed it a journal from its first entry."""

    def __init__(self, run: RunFold | None = None) -> None:
        """``run``: a fold that several accounts share; whoever shares it calls ``hear`` and not ``feed``."""
        self._run = run or RunFold()
        self._metrics = Metrics(self._run)
        self.timeline, self.fates, self.sources = Timeline(self._run), Fates(self._run), SourceTimes(self._run)
        self.parts = StepParts(self._run)
        self.steps: list[Row] = []
        self.evaluations: list[Row] = []
        self.losses: list[LostInstance] = []
        self.resumed_at: list[float] = []
        self.finish: do.FinishRun | None = None
        """How the run ended, as it said itself; None while it goes on, or if it was killed."""
        self.began = 0.0
        self.num_entries = 0

    @property
    def schedule(self) -> Schedule | None:
        return self._run.state.schedule

    @property
    def version(self) -> int:
        return self._run.state.version

    @property
    def now(self) -> float:
        """Run time of the last entry."""
        return self._run.state.now

    @property
    def num_preemptions(self) -> dict[InstanceId, int]:
        """Preemptions of each instance, according to its last report."""
        return {number: instance.num_preemptions for number, instance in self._run.state.instances.items()}

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Account:
        account = cls()
        account.follow(entries)
        return account

    def follow(self, entries: Iterable[Entry]) -> None:
        """Feed all entries. Raises ``Unfollowable`` at the first one that contradicts those before it."""
        for entry in entries:
            try:
                self.feed(entry)
            except MISFITS as error:
                where = f"entry {self.num_entries} ({type(entry.event).__name__}) does not fit those before it"
                raise Unfollowable(f"{where} ({type(error).__name__}: {error})") from error

    def feed(self, entry: Entry) -> None:
        for news in self._run.feed(entry):
            self.hear(news)

    def hear(self, news: News) -> None:
        for row in self._metrics.hear(news):
            (self.steps if "reward/mean" in row else self.evaluations).append(row)
        self.timeline.hear(news)
        self.fates.hear(news)
        self.sources.hear(news)
        self.parts.hear(news)
        match news.message:
            case TimeSinceLast():
                if self.num_entries == 0:
                    self.began = news.now
                self.num_entries += 1
            case ev.RunResumed():
                self.resumed_at.append(news.now)
                self.finish = None
            case ev.InstanceLost(instance=instance, reason=reason):
                self.losses.append(LostInstance(at=news.now, instance=instance, reason=reason))
            case do.FinishRun():
                self.finish = news.message

    @property
    def so_far(self) -> str:
        """How much of the run is done."""
        if self.schedule is None or self.schedule.trains:
            return f"{self.version} of {quantity(self.schedule.max_steps if self.schedule else 0, 'step')}"
        num_prompts = sum(eval_set.num_prompts for eval_set in self.schedule.eval_sets)
        return f"{len(self.fates.settled())} of {quantity(num_prompts, 'prompt')}"

    def why_it_stopped(self, note: str) -> str:
        """The reason why the run stopped; empty if it could not write one.

        ``note`` is the reason in the file beside the journal. It is newer than the one in the journal, because it is
        also written by a start that fails before its first entry; but a long reason is shortened in it.
        """
        own = self.finish.reason if self.finish else ""
        return own if own.startswith(note) else note
