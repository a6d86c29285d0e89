"""The least shift by which a job's phases never meet those of the other jobs of its node group.

A *footprint* is a demand trace in slots: period T, and segments at offsets o_k with d_k slots. A job that starts at
slot t0 uses the d_k slots from t0 + o_k + m T, for every whole number m: it is planned for ever, because nobody knows
when it will end.

Do a segment of d slots from slot a, every T slots, and one of c slots from slot b, every U slots, ever meet? Seen from
the first one, the second one begins at b - a + m U - n T. These are exactly the numbers that differ from b - a by a
multiple of g, the greatest common divisor of T and U. So they never meet if and only if

    d <= (b - a) mod g <= g - c

Jobs whose periods have only a small common divisor meet sooner or later, whatever their shift.

A *shift* delays the job by whole slots. It is *feasible* if no segment ever meets one of another job. Only shifts below
T are looked at, because a larger one delays the job by a whole period. The search jumps: if a segment is in the way,
every shift up to its end is infeasible too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tailrace.cluster.demand.trace import DemandTrace

_ROUNDING = 1e-9
"""Share of a slot that is taken for a rounding error of the division by the slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSegment:
    offset: int
    """Slots from the start of the period."""
    count: int
    slack: int = 0
    """Slots by which the segment can be late without making the job slower."""

    @property
    def end(self) -> int:
        return self.offset + self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    period: int
    segments: tuple[SlotSegment, ...]
    """In order, disjoint. The last one may end in the next period, before the first one of that period begins."""
    duty: float
    """Share of the time in which the job uses the group, of the trace itself."""
    repeats: int = 1
    """Periods of the job in one of the footprint."""

    @classmethod
    def of(cls, trace: DemandTrace, slot_s: float, *, repeats: int = 1) -> Footprint:
        """The slots that cover the trace.

        The period is the nearest whole number of slots, because an error in it would grow with every period: pauses
        become a little longer or shorter. A segment takes every slot that it touches, less those that the segment
        before it has already taken.
        """
        segments: list[SlotSegment] = []
        whole = trace.with_period(round(trace.period_s / slot_s) * slot_s) or trace
        taken = _slots_down(whole.segments[0].offset_s / slot_s)
        for segment in whole.segments:
            offset = max(taken, _slots_down(segment.offset_s / slot_s))
            end = max(_slots_up(segment.end_s / slot_s), 0 if segments else offset + 1)
            if end > offset:
                slack = _slots_down(segment.slack_s / slot_s)
                segments.append(SlotSegment(offset=offset, count=end - offset, slack=slack))
                taken = end
        period = max(round(whole.period_s / slot_s), segments[-1].end - segments[0].offset)
        return cls(period=period, segments=tuple(segments), duty=trace.duty, repeats=repeats)

    @property
    def busy_per_period(self) -> int:
        return sum(segment.count for segment in self.segments)


@dataclass(frozen=True, slots=True)
class PlacedFootprint:
    """A footprint, and a slot at which one of its periods begins."""

    footprint: Footprint
    start: int

    def uses(self, first: int) -> Iterator[tuple[int, int]]:
        """Slots that the job uses, as (first, end) in order, for ever, from the period that contains slot ``first``."""
        period, segments = self.footprint.period, self.footprint.segments
        begin = self.start + (first - self.start) // period * period
        while True:
            for segment in segments:
                yield begin + segment.offset, begin + segment.end
            begin += period


def least_shift(
    residents: Iterable[PlacedFootprint],
    footprint: Footprint,
    start: int,
    *,
    at_least: int = 0,
    at_most: int | None = None,
) -> int | None:
    """Least feasible shift from ``at_least`` to ``at_most`` (None: below the period) beside the residents, for a job
    that can start at slot ``start``."""
    obstacles = _obstacles(residents, footprint, start)
    if obstacles is None:
        return None
    last = footprint.period - 1 if at_most is None else min(at_most, footprint.period - 1)
    num_obstacles = num_open = len(obstacles)
    shift, index = at_least, 0
    while num_open and shift <= last:
        common, first, count, last_free = obstacles[index]
        distance = (shift - first) % common
        if count <= distance <= last_free:
            num_open -= 1
            index = index + 1 if index + 1 < num_obstacles else 0
        else:
            shift += count - distance if distance < count else common - distance + count
            num_open = num_obstacles
    return shift if shift <= last else None


def _obstacles(
    residents: Iterable[PlacedFootprint], footprint: Footprint, start: int
) -> list[tuple[int, int, int, int]] | None:
    """What each pair of segments forbids, as (common divisor, shift at which both begin together, slots of the other
    segment, largest distance at which they do not meet). None: one pair meets at every shift."""
    found = []
    for resident in residents:
        common = math.gcd(footprint.period, resident.footprint.period)
        for other in resident.footprint.segments:
            begins = resident.start + other.offset - start
            for own in footprint.segments:
                if own.count + other.count > common:
                    return None
                found.append((common, begins - own.offset, other.count, common - own.count))
    return found


def _slots_up(slots: float) -> int:
    return math.ceil(slots - _ROUNDING)


def _slots_down(slots: float) -> int:
    return math.floor(slots + _ROUNDING)
