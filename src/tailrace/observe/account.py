"""Everything a journal says about its run, from one pass over it. What the report and the doctor read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.errors import CoreError
from tailrace.core.ids import InstanceId
from tailrace.core.journal import Entry
from tailrace.core.schedule import Schedule
from tailrace.observe.fates import Fates
from tailrace.observe.metrics import Metrics, Row
from tailrace.observe.timeline import Timeline

MISFITS = (ValueError, CoreError, LookupError, TypeError, AttributeError, ArithmeticError, AssertionError)
"""What a fold raises over entries that do not belong together."""


class Unfollowable(ValueError):
    """An entry can be read but does not fit those before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """An instance that went away."""

    at: float
    instance: InstanceId
    reason: str


@dataclass(slots=True, kw_only=True)
class Account:
    schedule: Schedule | None = None
    steps: list[Row] = field(default_factory=list)
    evaluations: list[Row] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline)
    fates: Fates = field(default_factory=Fates)
    losses: list[Loss] = field(default_factory=list)
    resumed_at: list[float] = field(default_factory=list)
    num_preemptions: dict[InstanceId, int] = field(default_factory=dict)
    finish: do.FinishRun | None = None
    """The run's own last word; None while it goes on, or if it was cut off."""
    version: int = 0
    began: float = 0.0
    now: float = 0.0
    """Run time of the last entry."""
    num_entries: int = 0
    _metrics: Metrics = field(default_factory=Metrics)

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Account:
        account = cls()
        account.follow(entries)
        return account

    def follow(self, entries: Iterable[Entry]) -> None:
        """Feed them all; ``Unfollowable`` at the first that does not fit."""
        for entry in entries:
            try:
                self.feed(entry)
            except MISFITS as error:
                where = f"entry {self.num_entries} ({type(entry.event).__name__}) does not fit those before it"
                raise Unfollowable(f"{where} ({type(error).__name__}: {error})") from error

    def feed(self, entry: Entry) -> None:
        if self.num_entries == 0:
            self.began = entry.now
        self.num_entries += 1
        self.now = entry.now
        for row in self._metrics.feed(entry):
            (self.steps if "reward/mean" in row else self.evaluations).append(row)
        self.timeline.feed(entry)
        self.fates.feed(entry)
        self._event(entry.event)
        for command in entry.commands:
            if isinstance(command, do.FinishRun):
                self.finish = command

    @property
    def so_far(self) -> str:
        """How much of the run is done."""
        if self.schedule is None or self.schedule.trains:
            return f"{self.version} of {self.schedule.max_steps if self.schedule else 0} steps"
        num_prompts = sum(eval_set.num_prompts for eval_set in self.schedule.eval_sets)
        return f"{len(self.fates.settled())} of {num_prompts} prompts"

    def why_it_stopped(self, note: str) -> str:
        """The run's last word: ``note``, left beside the journal, or its own. Empty if it had no time for either.

        The note is the newer one: it also speaks of a start that came to no entry. A long reason is cut off in it.
        """
        own = self.finish.reason if self.finish else ""
        return own if own.startswith(note) else note

    def _event(self, event: ev.Event) -> None:
        match event:
            case ev.RunStarted(schedule=schedule):
                self.schedule = schedule
            case ev.RunResumed():
                self.resumed_at.append(self.now)
                self.finish = None
            case ev.InstanceLost(instance=instance, reason=reason):
                self.losses.append(Loss(at=self.now, instance=instance, reason=reason))
            case ev.RolloutReported(instance=instance, num_preemptions=count):
                self.num_preemptions[instance] = count
            case ev.StepTrained(version=version):
                self.version = version
