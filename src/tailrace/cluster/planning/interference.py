"""How much a job placed among others is expected to disturb them.

Resident i has segment k in repetition m at some slots of the ring. That occurrence is widened by the guard on both
sides (to the whole ring at most), and u(i, m, k) is the number of slots of the widened range in which the new job is
active.
The occurrence is *critical* if the slack of the segment is less than u: the resident would be late. Then

    interference = sum over residents i of  (sum of u over critical occurrences of i) / (M_i * T_i)

where M_i is the number of repetitions of i on the ring and T_i its period: the mean over its periods of the critical
overlap, as a share of the period. 0 means that nobody is expected to be late.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

from tailrace.cluster.planning.fitting import Footprint, PlacedFootprint


def interference(placed: PlacedFootprint, residents: Iterable[PlacedFootprint], guard: int) -> float:
    """Interference of ``placed`` with the residents; ``guard`` in slots."""
    activity = _Activity(placed)
    return sum(_overlap(activity, resident, guard) / _planned_slots(resident.footprint) for resident in residents)


def _planned_slots(footprint: Footprint) -> int:
    return footprint.num_repetitions * footprint.period


def _overlap(activity: _Activity, resident: PlacedFootprint, guard: int) -> int:
    """Slots in which critical occurrences of the resident, widened, meet the new job."""
    footprint, total = resident.footprint, 0
    for segment in footprint.segments:
        count = min(segment.count + 2 * guard, footprint.num_slots)
        if segment.slack >= count:
            continue
        first = resident.start + segment.offset - guard
        for slot in range(first, first + _planned_slots(footprint), footprint.period):
            overlap = activity.count(slot, count)
            if overlap > segment.slack:
                total += overlap
    return total


class _Activity:
    """Counts the active slots of a placed job in any range of the ring, in the time of one bisection."""

    __slots__ = ("_before", "_footprint", "_num_planned", "_num_slots", "_offsets", "_per_period", "_period", "_start")

    def __init__(self, placed: PlacedFootprint) -> None:
        footprint = placed.footprint
        self._footprint, self._start = footprint, placed.start
        self._period, self._num_slots = footprint.period, footprint.num_slots
        self._num_planned = _planned_slots(footprint)
        self._per_period = footprint.busy_per_period
        self._offsets = [segment.offset for segment in footprint.segments]
        self._before = list(accumulate((segment.count for segment in footprint.segments), initial=0))

    def count(self, slot: int, count: int) -> int:
        """Active slots among the ``count`` slots from ``slot``."""
        first = (slot - self._start) % self._num_slots
        end = first + count
        if end <= self._num_slots:
            return self._until(end) - self._until(first)
        return self._until(self._num_slots) - self._until(first) + self._until(end - self._num_slots)

    def _until(self, slot: int) -> int:
        """Active slots among the first ``slot`` slots from the start of the job."""
        if slot >= self._num_planned:
            return self._num_planned // self._period * self._per_period
        repetitions, slot = divmod(slot, self._period)
        index = bisect_right(self._offsets, slot) - 1
        active = repetitions * self._per_period
        if index < 0:
            return active
        segment = self._footprint.segments[index]
        return active + self._before[index] + min(slot - segment.offset, segment.count)
