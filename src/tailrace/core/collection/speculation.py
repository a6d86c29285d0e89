"""Search for the best over-provisioning: the first short rounds try several amounts, later rounds use the fastest.

The more prompts a short round launches, the sooner its batch is full, up to a point. But it also defers more prompts,
so the next long round comes sooner. Therefore the candidates are compared by the seconds per step over a whole period.
A short round that launches L prompts for a batch of B defers L - B, so there are n = B / (L - B) short rounds for each
long round:

    seconds per step = (n * short + long) / (n + 1)

Long rounds have no over-provisioning, so the average over all long rounds serves every candidate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.core.collection.round import Round
    from tailrace.core.schedule import Schedule

ROUNDS_PER_TRIAL = 2


@dataclass(slots=True, kw_only=True)
class Timing:
    """Total seconds and number of rounds of one kind."""

    seconds: float = 0.0
    count: int = 0

    def add(self, seconds: float) -> None:
        self.seconds += seconds
        self.count += 1

    @property
    def mean(self) -> float:
        return self.seconds / self.count


@dataclass(slots=True, kw_only=True)
class Search:
    """Durations of the rounds so far."""

    short: dict[int, Timing] = field(default_factory=dict)
    """Durations of short rounds, by the number of prompts launched without those for dynamic sampling."""
    long: Timing = field(default_factory=Timing)

    def note(self, round: Round, seconds: float) -> None:
        timing = self.long if round.is_long else self.short.setdefault(round.num_kept, Timing())
        timing.add(seconds)

    def launch(self, schedule: Schedule) -> tuple[int, int]:
        """Return how many prompts, and responses per prompt, the next short round launches."""
        default = (schedule.num_launched, schedule.num_members)
        for trial in schedule.trials:
            if trial[0] not in self.short or self.short[trial[0]].count < ROUNDS_PER_TRIAL:
                return trial
        if not schedule.trials or not self.long.count:
            return default  # candidates can be compared only after a long round
        return min(schedule.trials, key=lambda trial: self.seconds_per_step(schedule, trial[0]))

    def seconds_per_step(self, schedule: Schedule, launched: int) -> float:
        num_short = schedule.batch_size / (launched - schedule.batch_size)
        return (num_short * self.short[launched].mean + self.long.mean) / (num_short + 1)
