"""How much a short round launches in excess: tried out in the first rounds, then settled.

The more prompts a short round launches, the sooner it has its batch, up to a point; and the more it defers, the sooner
a long round follows. So what is tried is compared by what a step costs over a whole period. With L prompts launched for
a batch of B a short round defers L - B, so n = B / (L - B) short rounds come to one long round:

    seconds per step = (n * short + long) / (n + 1)

Long rounds launch nothing in excess, so one average of theirs serves every trial.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.core.rounds import Round
    from tailrace.core.schedule import Schedule

ROUNDS_PER_TRIAL = 2


@dataclass(slots=True, kw_only=True)
class Timing:
    """Seconds of rounds of one sort."""

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
    short: dict[int, Timing] = field(default_factory=dict)
    """By the prompts launched."""
    long: Timing = field(default_factory=Timing)

    def note(self, round: Round, seconds: float) -> None:
        timing = self.long if round.is_long else self.short.setdefault(round.size, Timing())
        timing.add(seconds)

    def launch(self, schedule: Schedule) -> tuple[int, int]:
        """Prompts and responses per prompt of the next short round."""
        default = (schedule.num_launched, schedule.num_members)
        for trial in schedule.trials:
            if trial[0] not in self.short or self.short[trial[0]].count < ROUNDS_PER_TRIAL:
                return trial
        if not schedule.trials or not self.long.count:
            return default  # what a long round costs is half of the question
        return min(schedule.trials, key=lambda trial: self.seconds_per_step(schedule, trial[0]))

    def seconds_per_step(self, schedule: Schedule, launched: int) -> float:
        num_short = schedule.batch_size / (launched - schedule.batch_size)
        return (num_short * self.short[launched].mean + self.long.mean) / (num_short + 1)
