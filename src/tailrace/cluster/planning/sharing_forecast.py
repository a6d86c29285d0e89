"""How much slower jobs become that share a node group: their traces played through, without jitter.

The group serves phases in the order in which they are asked for, one at a time. A job asks for its next phase when the
time between the two has passed. A phase that is late by more than its slack delays all later ones of its job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

from tailrace.cluster.demand.trace import DemandTrace

NUM_PERIODS = 200
"""Periods of the slowest job that are played through."""


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
    traces: Sequence[DemandTrace], starts: Sequence[float], *, switch_s: float = 0.0, num_periods: int = NUM_PERIODS
) -> SharingForecast:
    """Play the jobs of one group through. ``starts``: when the first period of each begins."""
    players = [_Player(index, trace, start) for index, (trace, start) in enumerate(zip(traces, starts, strict=True))]
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


class _Player:
    """One job: which segment comes next, and how late the job is."""

    def __init__(self, index: int, trace: DemandTrace, start: float) -> None:
        self.index, self.trace = index, trace
        self.num_periods = 0
        self._start, self._next, self._delay = start, 0, 0.0
        self.asks_at = self._due

    @property
    def _due(self) -> float:
        """When the next segment begins if it need not wait."""
        offset = self.trace.segments[self._next].offset_s
        return self._start + self._delay + self.num_periods * self.trace.period_s + offset

    def serve(self, start: float) -> float:
        """The next segment begins now. Return how long it lasts."""
        segment = self.trace.segments[self._next]
        self._delay += max(start - self._due - segment.slack_s, 0.0)
        self._next += 1
        if self._next == len(self.trace.segments):
            self._next, self.num_periods = 0, self.num_periods + 1
        self.asks_at = max(self._due, start + segment.duration_s)
        return segment.duration_s

    @property
    def slowdown(self) -> float:
        alone_s = self.num_periods * self.trace.period_s
        return 1.0 + self._delay / alone_s if alone_s else 1.0
