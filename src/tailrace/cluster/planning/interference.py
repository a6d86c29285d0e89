"""How much a job placed among others is expected to disturb them.

An occurrence of a resident's segment is widened by the guard on both sides (to a whole period at most), and u is the
number of slots of the widened range in which the new job is active. The occurrence is *critical* if the slack of the
segment is less than u: the resident would be late. The positions of two jobs to each other repeat after the least
common multiple of their periods. Over that time,

    interference = sum over residents of  (sum of u over critical occurrences) / (slots of that time)

So it is the mean over the resident's periods of the critical overlap, as a share of the period. 0 means that nobody is
expected to be late.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tailrace.cluster.planning.fitting import PlacedFootprint, SlotSegment


def interference(placed: PlacedFootprint, residents: Iterable[PlacedFootprint], guard: int) -> float:
    """Interference of ``placed`` with the residents; ``guard`` in slots."""
    return sum(_overlap(placed, resident, guard) for resident in residents)


def _overlap(placed: PlacedFootprint, resident: PlacedFootprint, guard: int) -> float:
    """Share of the time in which critical occurrences of the resident, widened, meet the new job."""
    period, total = resident.footprint.period, 0
    repeats_after = math.lcm(period, placed.footprint.period)
    for segment in resident.footprint.segments:
        count = min(segment.count + 2 * guard, period)
        if segment.slack >= count:
            continue
        first = resident.start + segment.offset - guard
        for slot in range(first, first + repeats_after, period):
            overlap = _active(placed, slot, count)
            if overlap > segment.slack:
                total += overlap
    return total / repeats_after


def _active(placed: PlacedFootprint, slot: int, count: int) -> int:
    """Slots in which the job is active, among the ``count`` slots from ``slot``."""
    first, period = slot - placed.start, placed.footprint.period
    return sum(
        _active_before(segment, period, first + count) - _active_before(segment, period, first)
        for segment in placed.footprint.segments
    )


def _active_before(segment: SlotSegment, period: int, slot: int) -> int:
    """Active slots from the first occurrence of the segment to this slot; negative for a slot before it."""
    repetitions, slots = divmod(slot - segment.offset, period)
    return repetitions * segment.count + min(slots, segment.count)
