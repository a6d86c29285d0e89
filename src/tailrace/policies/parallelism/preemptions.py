"""Preemptions: the size is doubled when responses are preempted more often than in the round before, and halved after
some rounds without a preemption (RollPacker, section 4.2).

A larger size has more KV cache for each response, and a smaller one decodes more responses in the same time. Two
further rules keep a change from doing harm. A rise from no preemption at all does not count if the expected lengths fit
into the KV cache. And a change must save more time within the horizon than it takes, by the measured costs of both
sizes (`round_time.py`). A size that was never measured is tried as the paper's rule says: then its costs are known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from tailrace.core.fleet.parallelism import ParallelismView, SizeView
from tailrace.core.schedule import Schedule
from tailrace.core.schedule.parallelism import Division
from tailrace.policies.parallelism.price import change_s
from tailrace.policies.parallelism.round_time import RoundWork


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeByPreemptions:
    changes: ClassVar[bool] = True
    rise: float
    least_rise: float
    quiet_rounds: int
    has_price: bool
    """Whether a change must pay."""

    @classmethod
    def of(cls, schedule: Schedule) -> Self:
        known = schedule.parallelism
        return cls(
            rise=known.rise,
            least_rise=known.least_rise,
            quiet_rounds=known.quiet_rounds,
            has_price=known.horizon is not None,
        )

    def choose(self, view: ParallelismView) -> Division:
        now, work = view.of(view.size), RoundWork.of(view)
        other = None
        if self._is_rising(view):
            is_chance = view.before == 0 and work.fits(now)
            other = None if is_chance else view.next_to(view.size, larger=True)
        elif view.num_quiet >= self.quiet_rounds:
            other = view.next_to(view.size, larger=False)
        if other is None or (self.has_price and not _pays(view, work, now, other)):
            return now.division
        return other.division

    def _is_rising(self, view: ParallelismView) -> bool:
        if view.before is None or view.last is None:
            return False
        more = (view.last - view.before) * view.num_launched
        return view.last > self.rise * view.before and more >= max(1.0, self.least_rise * view.num_launched)


def _pays(view: ParallelismView, work: RoundWork, now: SizeView, other: SizeView) -> bool:
    """Whether the rounds within the horizon become shorter by more than the change takes, or nobody can know."""
    if not (now.is_measured and other.is_measured):
        return True
    return view.rounds[0] * (work.seconds(now) - work.seconds(other)) > change_s(view, now, other)
