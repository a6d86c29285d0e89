"""How much slower jobs become that share a node group: their traces played through.

The group serves phases in the order in which they are asked for, one at a time. A job asks for its next phase when the
time between the two has passed. A phase that is late by more than its slack delays all later ones of its job.

All periods of a trace are alike. Those of a run are not: recorded periods are played in a mixed order, each about as
often as the others, and in another order for each ``seed``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import count, repeat
from typing import NamedTuple

from tailrace.cluster.demand.trace import DemandTrace

NUM_PERIODS = 200
"""Periods of the slowest job that are played through."""
_MOST_JOBS = 1000
"""More than a group ever has, so that each job has numbers of its own for each seed."""


class PeriodTime(NamedTuple):
    """One period of a run that had its group to itself."""

    pauses_s: float
    busy_s: float
    """Seconds in which it used its group."""


class _Stretch(NamedTuple):
    """How much longer a period is than that of the trace."""

    pauses: float = 1.0
    busy: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A stretch of time in which a job has the group."""

    index: int
    """Place of the job among those given."""
    switch_at: float
    """When the group begins to change to the job; equal to ``start`` if it has the job already."""
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingForecast:
    slowdowns: tuple[float, ...]
    """Time with sharing over time alone, for each job. The first, planned shift does not count."""
    uses: tuple[Use, ...]
    """In order, without overlap."""
    switches_per_step: float


def forecast(
    traces: Sequence[DemandTrace],
    starts: Sequence[float],
    *,
    switch_s: float = 0.0,
    num_periods: int = NUM_PERIODS,
    recorded: Sequence[Sequence[PeriodTime]] = (),
    seed: int = 0,
) -> SharingForecast:
    """Play the jobs of one group through. ``starts``: when the first period of each begins. ``recorded``: periods of
    each job's run, from which each of its periods is drawn; those of a job that has none are all like its trace."""
    periods = recorded or [()] * len(traces)
    players = [
        _Player(index, trace, start, _stretches(trace, times, _MOST_JOBS * seed + index))
        for index, (trace, start, times) in enumerate(zip(traces, starts, periods, strict=True))
    ]
    until = max(starts) + num_periods * max(trace.period_s for trace in traces)
    waiting = [(player.asks_at, player.index) for player in players]
    heapify(waiting)
    uses: list[Use] = []
    free_at, resident, num_switches = 0.0, None, 0
    while waiting[0][0] < until:
        asks_at, index = waiting[0]
        switch_at = max(asks_at, free_at)
        is_switch = resident is not None and index != resident
        start = switch_at + switch_s * is_switch
        free_at = start + players[index].serve(start)
        uses.append(Use(index=index, switch_at=switch_at, start=start, end=free_at))
        resident, num_switches = index, num_switches + is_switch
        heapreplace(waiting, (players[index].asks_at, index))
    steps = sum(player.num_periods * player.trace.steps for player in players)
    return SharingForecast(
        slowdowns=tuple(player.slowdown for player in players),
        uses=tuple(uses),
        switches_per_step=num_switches / steps if steps else 0.0,
    )


def _stretches(trace: DemandTrace, recorded: Sequence[PeriodTime], seed: int) -> Iterator[_Stretch]:
    """How long each period is, for ever. Multiples of an irrational number, modulo 1, are spread evenly, in another
    order for each number."""
    if not recorded:
        return repeat(_Stretch())
    pauses_s = trace.period_s - trace.busy_s
    found = [
        _Stretch(pauses=each.pauses_s / pauses_s if pauses_s > 0 else 1.0, busy=each.busy_s / trace.busy_s)
        for each in recorded
    ]
    step = math.sqrt(_not_square(seed))
    return (found[int(number * step % 1.0 * len(found))] for number in count(1))


def _not_square(number: int) -> int:
    """The whole numbers without the squares, from 2 on: their roots are irrational."""
    return number + 1 + round(math.sqrt(number + 1)) if number else 2


class _Player:
    """One job: which segment comes next, and how late the job is."""

    def __init__(self, index: int, trace: DemandTrace, start: float, stretches: Iterator[_Stretch]) -> None:
        self.index, self.trace = index, trace
        self.num_periods = 0
        self._alone_s = 0.0
        """Seconds of its whole periods so far, if it had the group to itself."""
        self._next, self._delay = 0, 0.0
        self._stretches = stretches
        self._begin(start)
        self.asks_at = self._due

    def _begin(self, start: float) -> None:
        """A period begins. Where its segments begin, if none is late, and how long they and the whole take."""
        self._stretch = next(self._stretches)
        self._offsets, at, before_s = [], start, 0.0
        for segment in self.trace.segments:
            at += (segment.offset_s - before_s) * self._stretch.pauses
            self._offsets.append(at)
            at, before_s = at + segment.duration_s * self._stretch.busy, segment.end_s
        self._end = at + (self.trace.period_s - before_s) * self._stretch.pauses
        self._period_s = self._end - start

    @property
    def _due(self) -> float:
        """When the next segment begins if it need not wait."""
        return self._delay + self._offsets[self._next]

    def serve(self, start: float) -> float:
        """The next segment begins now. Return how long it lasts."""
        segment = self.trace.segments[self._next]
        duration_s = segment.duration_s * self._stretch.busy
        self._delay += max(start - self._due - segment.slack_s, 0.0)
        self._next += 1
        if self._next == len(self.trace.segments):
            self._next, self.num_periods = 0, self.num_periods + 1
            self._alone_s += self._period_s
            self._begin(self._end)
        self.asks_at = max(self._due, start + duration_s)
        return duration_s

    @property
    def slowdown(self) -> float:
        return 1.0 + self._delay / self._alone_s if self._alone_s else 1.0
