"""What a switch costs: moving the resident job's state out of a node group, and the next job's state in.

    setup = offload(resident) + load(next job) - what a prefetch already did          never below 0

A job's transfers are predicted from its own earlier ones. Before there are any, its bytes are divided by the bandwidth
that other jobs reached on the group, or else by the assumed one. One object serves one node group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tailrace.cluster.events import Direction
from tailrace.cluster.ids import JobId
from tailrace.cluster.job_spec import StateBytes
from tailrace.cluster.settings import Transfers

_NEWEST_SHARE = 0.3
"""Weight of the newest transfer in an average: five transfers after a change, five sixths of it are learned."""


@dataclass(frozen=True, slots=True)
class JobState:
    """A job and the size of its state."""

    job: JobId
    state: StateBytes = StateBytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flow:
    """Averages of the bytes and of the seconds of transfers in one direction. Their quotient is the bandwidth, so a
    tiny transfer counts little."""

    num_bytes: float
    seconds: float


class SetupCosts:
    def __init__(self, transfers: Transfers) -> None:
        """``transfers``: what is assumed until transfers have been measured."""
        self._assumed = transfers
        self._seconds: dict[tuple[JobId, Direction], float] = {}
        self._flows: dict[Direction, _Flow] = {}

    def measured(
        self, job: JobId, direction: Direction, *, num_bytes: int, seconds: float, prefetched_s: float = 0.0
    ) -> None:
        """Learn from a transfer. ``prefetched_s``: seconds of a load that a prefetch did in advance; the whole load
        would have taken so much longer."""
        if direction is Direction.PREFETCH or not (math.isfinite(seconds) and seconds >= 0):
            return
        key, whole_s = (job, direction), seconds + prefetched_s
        self._seconds[key] = _average(self._seconds.get(key), whole_s)
        moving_s = seconds - self._assumed.fixed_s
        # The bytes that a load after a prefetch reports may be all bytes or the rest of them: no bandwidth follows.
        if prefetched_s == 0 and num_bytes > 0 and moving_s > 0:
            flow = self._flows.get(direction, _Flow(num_bytes=num_bytes, seconds=moving_s))
            self._flows[direction] = _Flow(
                num_bytes=_average(flow.num_bytes, num_bytes), seconds=_average(flow.seconds, moving_s)
            )

    def forget(self, job: JobId) -> None:
        """Forget a job's own transfers. The bandwidth that they showed stays known."""
        for direction in Direction:
            self._seconds.pop((job, direction), None)

    def offload_s(self, job: JobId, state: StateBytes) -> float:
        """Return the predicted seconds of moving the job's state out of the devices."""
        return self._transfer_s(job, state, Direction.OFFLOAD)

    def load_s(self, job: JobId, state: StateBytes) -> float:
        """Return the predicted seconds of moving the job's state into the devices, without a prefetch."""
        return self._transfer_s(job, state, Direction.LOAD)

    def setup_s(self, resident: JobState | None, job: JobState, prefetched_s: float = 0.0) -> float:
        """Return the predicted seconds until ``job`` could compute. ``resident``: whose state is on the devices."""
        if resident is not None and resident.job == job.job:
            return 0.0
        offload_s = 0.0 if resident is None else self.offload_s(resident.job, resident.state)
        return max(0.0, offload_s + self.load_s(job.job, job.state) - prefetched_s)

    def _transfer_s(self, job: JobId, state: StateBytes, direction: Direction) -> float:
        if (seconds := self._seconds.get((job, direction))) is not None:
            return seconds
        flow = self._flows.get(direction)
        bytes_per_s = self._assumed.bytes_per_s if flow is None else flow.num_bytes / flow.seconds
        return self._assumed.fixed_s + state.total / bytes_per_s


def _average(average: float | None, newest: float) -> float:
    return newest if average is None else average + _NEWEST_SHARE * (newest - average)
