"""What a switch costs: moving the resident job's state out of a node group, and the next job's state in.

    setup = offload(resident) + load(next job) - what a prefetch already did          never below 0

Only the parts of a state that are on the devices move out, and only those that are needed and missing move in.

A job's transfers are predicted from its own earlier ones of the same parts. Before there are any, its bytes are divided
by the bandwidth that other jobs reached on the group, or else by the assumed one. One object serves one node group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tailrace.cluster.events import Direction
from tailrace.cluster.ids import JobId
from tailrace.cluster.job_spec import ALL_PARTS, Parts, StateBytes, in_order
from tailrace.cluster.settings import Transfers

_NEWEST_SHARE = 0.3
"""Weight of the newest transfer in an average: five transfers after a change, five sixths of it are learned."""


@dataclass(frozen=True, slots=True)
class JobState:
    """A job, the size of its state, and those parts of it that are needed, or are on the devices."""

    job: JobId
    state: StateBytes = StateBytes()
    parts: Parts = ALL_PARTS

    def missing_from(self, resident: JobState | None) -> JobState:
        """Return it with the parts that are not on the devices yet."""
        there = resident.parts if resident is not None and resident.job == self.job else ()
        return replace(self, parts=tuple(part for part in self.parts if part not in there))

    def is_on_devices(self, resident: JobState | None) -> bool:
        return resident is not None and resident.job == self.job and not self.missing_from(resident).parts

    def joined(self, resident: JobState | None) -> JobState:
        """Return it with its parts and those that are on the devices already."""
        there = resident.parts if resident is not None and resident.job == self.job else ()
        return replace(self, parts=in_order((*self.parts, *there)))


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
        self._seconds: dict[tuple[JobId, Direction, Parts], float] = {}
        self._flows: dict[Direction, _Flow] = {}

    def measured(
        self,
        job: JobId,
        direction: Direction,
        *,
        num_bytes: int,
        seconds: float,
        prefetched_s: float = 0.0,
        parts: Parts = ALL_PARTS,
    ) -> None:
        """Learn from a transfer. ``prefetched_s``: seconds of a load that a prefetch did in advance; the whole load
        would have taken so much longer."""
        if direction is Direction.PREFETCH or not (math.isfinite(seconds) and seconds >= 0):
            return
        key, whole_s = (job, direction, parts), seconds + prefetched_s
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
        self._seconds = {key: seconds for key, seconds in self._seconds.items() if key[0] != job}

    def offload_s(self, job: JobId, state: StateBytes, parts: Parts = ALL_PARTS) -> float:
        """Return the predicted seconds of moving these parts of the job's state out of the devices."""
        return self._transfer_s(job, state, parts, Direction.OFFLOAD)

    def load_s(self, job: JobId, state: StateBytes, parts: Parts = ALL_PARTS) -> float:
        """Return the predicted seconds of moving these parts of the job's state in, without a prefetch."""
        return self._transfer_s(job, state, parts, Direction.LOAD)

    def setup_s(self, resident: JobState | None, job: JobState, prefetched_s: float = 0.0) -> float:
        """Return the predicted seconds until ``job`` could compute. ``resident``: whose state is on the devices."""
        stays = resident is None or resident.job == job.job
        offload_s = 0.0 if stays or resident is None else self.offload_s(resident.job, resident.state, resident.parts)
        missing = job.missing_from(resident)
        load_s = self.load_s(job.job, job.state, missing.parts) if missing.parts else 0.0
        return max(0.0, offload_s + load_s - prefetched_s)

    def _transfer_s(self, job: JobId, state: StateBytes, parts: Parts, direction: Direction) -> float:
        if (seconds := self._seconds.get((job, direction, parts))) is not None:
            return seconds
        flow = self._flows.get(direction)
        bytes_per_s = self._assumed.bytes_per_s if flow is None else flow.num_bytes / flow.seconds
        return self._assumed.fixed_s + state.of(parts) / bytes_per_s


def _average(average: float | None, newest: float) -> float:
    return newest if average is None else average + _NEWEST_SHARE * (newest - average)
