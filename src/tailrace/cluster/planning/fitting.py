"""The least shift by which a job's phases fall into free slots.

A *footprint* is a demand trace in slots of a ring of H slots: period T, and segments at offsets o_k with d_k slots. It
has the repetitions m = 0 .. floor(H / T) - 1; a job with T > H has none. At start t0 with shift delta, segment k of
repetition m takes the d_k slots from (t0 + delta + o_k + m * T) mod H. A shift is *feasible* if all of these slots are
free. Only shifts below T are looked at, because a larger one delays the job by a whole period.

The search jumps: if a segment does not fit, every shift up to the end of what is in its way is infeasible too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from tailrace.cluster.demand.trace import DemandTrace
from tailrace.cluster.planning.capacity import CapacityProfile
from tailrace.cluster.planning.intervals import IntervalSet

_ROUNDING = 1e-9
"""Share of a slot that is taken for a rounding error of the division by the slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSegment:
    offset: int
    """Slots from the start of the period."""
    count: int
    slack: int = 0
    """Slots by which the segment can be late without making the job slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    num_slots: int
    """Length of the ring."""
    period: int
    segments: tuple[SlotSegment, ...]
    """In order, disjoint, all within the period."""
    duty: float
    """Share of the time in which the job uses the group, of the trace itself."""
    probes: tuple[tuple[int, int], ...] = field(init=False, repr=False, compare=False)
    """All (offset from the start, count), in the order in which a search looks at them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "probes", _probes(self.num_slots // self.period, self.period, self.segments))

    @classmethod
    def of(cls, trace: DemandTrace, slot_s: float, num_slots: int) -> Footprint | None:
        """The slots that cover the trace; None: its period is longer than the ring.

        A segment takes every slot that it touches, less those that the segment before it has already taken.
        """
        period = _slots_up(trace.period_s / slot_s)
        if period > num_slots:
            return None
        segments: list[SlotSegment] = []
        taken = 0
        for segment in trace.segments:
            offset = max(taken, _slots_down(segment.offset_s / slot_s))
            taken = max(offset, _slots_up(segment.end_s / slot_s))
            slack = _slots_down(segment.slack_s / slot_s)
            if taken > offset:
                segments.append(SlotSegment(offset=offset, count=taken - offset, slack=slack))
        return cls(num_slots=num_slots, period=period, segments=tuple(segments), duty=trace.duty)

    @property
    def num_repetitions(self) -> int:
        return self.num_slots // self.period

    @property
    def busy_per_period(self) -> int:
        return sum(segment.count for segment in self.segments)

    def ranges(self, start: int) -> Iterator[tuple[int, int]]:
        """Slots of all segments of all repetitions as (first slot, count), for a job that starts at ``start``."""
        for first in range(start, start + self.num_repetitions * self.period, self.period):
            for segment in self.segments:
                yield (first + segment.offset) % self.num_slots, segment.count


@dataclass(frozen=True, slots=True)
class PlacedFootprint:
    """A footprint whose first period begins at a slot."""

    footprint: Footprint
    start: int

    def ranges(self) -> Iterator[tuple[int, int]]:
        return self.footprint.ranges(self.start)


def least_shift(
    busy: IntervalSet, footprint: Footprint, start: int, *, at_least: int = 0, at_most: int | None = None
) -> int | None:
    """Least feasible shift from ``at_least`` to ``at_most`` (None: below the period) on one node group."""
    return _jump_search(footprint, start, busy.busy_end, at_least, at_most)


def least_shift_by_capacity(profile: CapacityProfile, footprint: Footprint, start: int, amount: int) -> int | None:
    """A bound: no node group of ``amount`` nodes or more has a smaller feasible shift. None: none has any.

    A group of that many nodes that is free in a slot makes the profile of the slot at least as high.
    """
    if profile.overall_minimum >= amount:
        return 0

    def blocked(start: int, count: int) -> int | None:
        last = profile.last_below(start, count, amount)
        return None if last is None else last + 1

    return _jump_search(footprint, start, blocked, 0, None)


def _jump_search(
    footprint: Footprint, start: int, blocked: Callable[[int, int], int | None], at_least: int, at_most: int | None
) -> int | None:
    """``blocked(slot, count)`` is the shift below which the range does not fit; None: it fits."""
    last = footprint.period - 1 if at_most is None else min(at_most, footprint.period - 1)
    probes, num_slots = footprint.probes, footprint.num_slots
    num_probes = num_open = len(probes)
    shift, index = at_least, 0
    while num_open and shift <= last:
        offset, count = probes[index]
        jump = blocked((start + shift + offset) % num_slots, count)
        if jump is None:
            num_open -= 1
            index = index + 1 if index + 1 < num_probes else 0
        else:
            shift += jump
            num_open = num_probes
    return shift if shift <= last else None


@lru_cache(maxsize=256)
def _probes(repetitions: int, period: int, segments: tuple[SlotSegment, ...]) -> tuple[tuple[int, int], ...]:
    """All (offset from the start, count). Repetitions that are far apart come first.

    Jobs of slightly different periods collide at the far end of the ring if not at the near one. Steps of about the
    golden ratio of the repetitions find that after few probes.
    """
    stride = max(1, round(repetitions * 0.618))
    while math.gcd(stride, repetitions) != 1:
        stride += 1
    order = [index * stride % repetitions for index in range(repetitions)]
    return tuple((m * period + part.offset, part.count) for m in order for part in segments)


def _slots_up(slots: float) -> int:
    return math.ceil(slots - _ROUNDING)


def _slots_down(slots: float) -> int:
    return math.floor(slots + _ROUNDING)
