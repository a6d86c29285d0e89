"""What is known about the costs of requests on one node group: durations, transfers and prefetches."""

from __future__ import annotations

from dataclasses import replace

from tailrace.cluster.arbitration.ratios import WaitingPhase
from tailrace.cluster.arbitration.requests import Durations, PhaseRequest
from tailrace.cluster.arbitration.setup_costs import JobState, SetupCosts
from tailrace.cluster.arbitration.turns import Prefetched
from tailrace.cluster.ids import JobId
from tailrace.cluster.settings import ClusterRules


class KnownCosts:
    def __init__(self, rules: ClusterRules) -> None:
        self._grain, self._hold_s = rules.grain, rules.hold_s
        self.costs = SetupCosts(rules.transfers)
        self._durations = Durations()
        self._prefetched: Prefetched | None = None

    @property
    def prefetched_job(self) -> JobId | None:
        """Job whose state has been brought near to the devices, or is on its way."""
        return None if self._prefetched is None else self._prefetched.job

    @property
    def prefetch_in_progress(self) -> Prefetched | None:
        return self._prefetched if self._prefetched is not None and self._prefetched.seconds is None else None

    def prefetched_s(self, owner: JobState, now: float) -> float:
        """Return the seconds of the job's load that have been done in advance. At most all of them: a prefetch may be
        slower than a load, or lost."""
        prefetched = self._prefetched
        if prefetched is None or prefetched.job != owner.job:
            return 0.0
        return min(prefetched.seconds_at(now), self.costs.load_s(owner.job, owner.state, owner.parts))

    def candidate(self, request: PhaseRequest, resident: JobState | None, now: float) -> WaitingPhase:
        """Return the request with the costs of granting it now."""
        return WaitingPhase(
            request=request,
            execution_s=self.execution_s(request),
            setup_s=self.setup_s(resident, request.owner, now),
            needs_switch=not request.owner.is_on_devices(resident),
        )

    def setup_s(self, resident: JobState | None, owner: JobState, now: float) -> float:
        """Return the predicted seconds until the owner's state is on the devices."""
        return self.costs.setup_s(resident, owner, self.prefetched_s(owner, now))

    def execution_s(self, request: PhaseRequest) -> float:
        return self._durations.execution_s(request, self._grain)

    def hold_limit_s(self, job: JobState) -> float:
        """Return for how long a hold for the job pays: until the switches away from it and back cost as much."""
        there = (job.job, job.state, job.parts)
        return min(self._hold_s, self.costs.offload_s(*there) + self.costs.load_s(*there))

    def took(self, request: PhaseRequest, seconds: float) -> None:
        """The operations that were granted to the request took ``seconds``."""
        self._durations.observe(request, seconds)

    def prefetch_began(self, owner: JobState, transfer: int, now: float) -> None:
        expected_s = self.costs.load_s(owner.job, owner.state, owner.parts)
        self._prefetched = Prefetched(job=owner.job, transfer=transfer, since=now, expected_s=expected_s)

    def prefetch_ended(self, job: JobId, transfer: int, seconds: float) -> bool:
        """Return whether this prefetch was expected to end."""
        prefetched = self._prefetched
        if prefetched is None or (prefetched.job, prefetched.transfer) != (job, transfer):
            return False
        if prefetched.seconds is not None or not seconds >= 0:
            return False
        self._prefetched = replace(prefetched, seconds=seconds)
        return True

    def prefetch_lost(self) -> None:
        """A prefetched state is no longer near to the devices: its job was loaded, or another took the room."""
        self._prefetched = None

    def forget(self, job: JobId) -> None:
        self._durations.forget(job)
        self.costs.forget(job)
        if self.prefetched_job == job:
            self._prefetched = None
