"""Requests for a node group, and how long they will take.

A user's estimate can be far too low. The estimate of a request is therefore at least the median of what the job's last
few requests with as many operations left took: ``max(estimate, median)``. The median, because one phase that takes ten
times as long is an accident and should not make the job wait behind everybody from then on.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

from tailrace.cluster.arbitration.setup_costs import JobState
from tailrace.cluster.ids import JobId, TenantId
from tailrace.cluster.job_spec import ALL_PARTS, Parts, StateBytes
from tailrace.cluster.settings import Grain

_NUM_REMEMBERED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRequest:
    """A job wants to run the operations of a phase."""

    job: JobId
    tenant: TenantId
    asked_at: float
    operations_s: tuple[float, ...]
    """Estimated seconds of each operation that is left of the phase."""
    slack_s: float = 0.0
    """Seconds for which the request can wait without making the job slower."""
    state: StateBytes = StateBytes()
    """Size of the job's state."""
    parts: Parts = ALL_PARTS
    """Parts of the state that must be on the devices before the job can compute."""
    later_parts: Parts = ()
    """Parts that any of the job's phases asks for: the others can be loaded while this one computes."""

    @property
    def latest_start(self) -> float:
        """Time after which waiting makes the job slower."""
        return self.asked_at + self.slack_s

    @property
    def owner(self) -> JobState:
        return JobState(self.job, self.state, self.parts)

    def num_granted(self, grain: Grain) -> int:
        """Return how many of the operations one grant covers."""
        return len(self.operations_s) if grain is Grain.PHASE else 1

    def estimate_s(self, grain: Grain) -> float:
        """Return the estimated seconds of the operations that one grant covers."""
        return sum(max(0.0, seconds) for seconds in self.operations_s[: self.num_granted(grain)])


class Durations:
    """How long the last few grants of each job took."""

    def __init__(self) -> None:
        self._seconds: dict[JobId, dict[int, deque[float]]] = {}

    def observe(self, request: PhaseRequest, seconds: float) -> None:
        """Remember how long the operations granted to ``request`` took."""
        if math.isfinite(seconds) and seconds >= 0:
            # Operations of a phase differ; how many are left tells which one is meant.
            of_job = self._seconds.setdefault(request.job, {})
            of_job.setdefault(len(request.operations_s), deque(maxlen=_NUM_REMEMBERED)).append(seconds)

    def execution_s(self, request: PhaseRequest, grain: Grain) -> float:
        """Return the seconds that a grant to ``request`` is expected to last."""
        seen = self._seconds.get(request.job, {}).get(len(request.operations_s))
        return max(request.estimate_s(grain), median(seen) if seen else 0.0)

    def forget(self, job: JobId) -> None:
        self._seconds.pop(job, None)
