"""A demand trace from a log of what a job did on its node group."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from tailrace.cluster.demand.periods import period_in_steps
from tailrace.cluster.demand.trace import DemandSegment, DemandTrace

PLANNED_SHARE = 0.9
"""Share of the observed durations that the planned duration covers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    kind: str
    """What was done: ``update``, for instance."""
    started: float
    """Seconds on any clock that is the same for the whole log."""
    seconds: float
    step: int
    """Optimizer step that the operation belongs to."""

    @property
    def ended(self) -> float:
        return self.started + self.seconds


@dataclass(frozen=True, slots=True)
class _Step:
    seconds: float
    """From the start of its first operation to that of the next step."""
    stretches: tuple[tuple[float, float], ...]
    """(seconds from its start, duration) of each stretch of operations without a gap."""


def trace_of(
    operations: Iterable[Operation],
    *,
    ended: float | None = None,
    max_gap_s: float = 1.0,
    slack_s: float = 0.0,
    steps_per_period: int | None = None,
) -> DemandTrace | None:
    """The pattern of a job that had its group to itself; None: the log does not contain one whole step.

    A step lasts from its first operation to that of the next step; the last one until ``ended``, or it is left out.
    Operations that follow each other within ``max_gap_s`` make one segment. Offsets and the lengths of steps are means
    over the repetitions; a duration is the least that nine of ten repetitions do not exceed. Steps whose number of
    segments differs from that of most steps at the same place of the pattern are left out. ``steps_per_period`` None:
    found from the log.
    """
    in_order = sorted((operation for operation in operations if operation.seconds > 0), key=lambda one: one.started)
    steps = _steps(in_order, ended, max_gap_s)
    if not steps:
        return None
    length = period_in_steps(_rows(steps)) if steps_per_period is None else steps_per_period
    if not 1 <= length <= len(steps):
        raise ValueError(f"a period of {length} steps cannot be read from a log of {len(steps)} whole steps")
    places = [_typical(steps[place::length]) for place in range(length)]
    lengths_s = [statistics.fmean(step.seconds for step in same) for same in places]
    begins_s = list(accumulate(lengths_s, initial=0.0))
    segments = [
        DemandSegment(
            offset_s=begin + statistics.fmean(starts),
            duration_s=_planned_s(durations),
            slack_s=slack_s,
            mean_s=statistics.fmean(durations),
        )
        for begin, same in zip(begins_s, places, strict=False)
        for starts, durations in _transposed(same)
    ]
    return DemandTrace.clipped(period_s=begins_s[-1], segments=segments, steps=length)


def _steps(operations: Sequence[Operation], ended: float | None, max_gap_s: float) -> list[_Step]:
    by_step: dict[int, list[Operation]] = {}
    for operation in operations:
        by_step.setdefault(operation.step, []).append(operation)
    begins = [parts[0].started for parts in by_step.values()]
    if ended is not None:
        begins.append(ended)
    return [
        _Step(end - begin, _stretches(parts, begin, max_gap_s))
        for parts, (begin, end) in zip(by_step.values(), pairwise(begins), strict=False)
    ]


def _stretches(operations: Sequence[Operation], begin: float, max_gap_s: float) -> tuple[tuple[float, float], ...]:
    stretches: list[tuple[float, float]] = []
    for operation in operations:
        start, end = operation.started - begin, operation.ended - begin
        if stretches and start <= stretches[-1][1] + max_gap_s:
            stretches[-1] = (stretches[-1][0], max(stretches[-1][1], end))
        else:
            stretches.append((start, end))
    return tuple((start, end - start) for start, end in stretches)


def _rows(steps: Sequence[_Step]) -> list[list[float]]:
    """Seconds of each step and of its segments, with 0 for segments that only other steps have."""
    width = max(len(step.stretches) for step in steps)
    return [
        [step.seconds, *(duration for _, duration in step.stretches), *[0.0] * (width - len(step.stretches))]
        for step in steps
    ]


def _typical(steps: Sequence[_Step]) -> list[_Step]:
    (number, _), *_ = Counter(len(step.stretches) for step in steps).most_common(1)
    return [step for step in steps if len(step.stretches) == number]


def _transposed(steps: Sequence[_Step]) -> list[tuple[list[float], list[float]]]:
    """Starts and durations of each segment over the repetitions."""
    columns = zip(*(step.stretches for step in steps), strict=True)
    return [([start for start, _ in column], [duration for _, duration in column]) for column in columns]


def _planned_s(durations: Sequence[float]) -> float:
    return sorted(durations)[math.ceil(PLANNED_SHARE * len(durations)) - 1]
