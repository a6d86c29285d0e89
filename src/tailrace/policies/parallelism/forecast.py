"""Forecast: the size with which the rounds within the horizon are expected to take the least time, changes included.

``preemptions`` asks for another size only when the KV cache becomes too small. But a few long responses, which have the
devices to themselves, are also generated faster by more devices. The lengths of earlier rounds and the measured costs
of each size say by how much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from tailrace.core.fleet.parallelism import ParallelismView, SizeView
from tailrace.core.schedule import Schedule
from tailrace.core.schedule.parallelism import Division
from tailrace.policies.parallelism.price import change_s
from tailrace.policies.parallelism.round_time import RoundWork

MARGIN = 0.05
"""Least part of a round that another size must save: forecasts are not better than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeByForecast:
    changes: ClassVar[bool] = True
    has_price: bool
    """Whether a change must pay."""

    @classmethod
    def of(cls, schedule: Schedule) -> Self:
        return cls(has_price=schedule.parallelism.horizon is not None)

    def choose(self, view: ParallelismView) -> Division:
        now, work = view.of(view.size), RoundWork.of(view)
        if view.last is None:
            return now.division  # nothing is known of a round of this kind with this size
        least_s = work.seconds(now)

        def saved(other: SizeView) -> float:
            gained = least_s - work.seconds(other)
            if gained <= MARGIN * least_s:
                return 0.0
            return view.rounds[0] * gained - (change_s(view, now, other) if self.has_price else 0.0)

        best = max(view.sizes, key=saved)
        return best.division if saved(best) > 0 else now.division
