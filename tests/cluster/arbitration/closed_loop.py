"""Serial jobs on one node group, in virtual time: each rolls out, asks for its phase, computes, and begins again.

The loop checks with every grant what section 4.6 of the specification demands: at most one operation at a time, the
resident job is the one that computes, and a job's operations run in its own order.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tailrace.cluster import commands as do
from tailrace.cluster.arbitration.expected import ExpectedPhase
from tailrace.cluster.arbitration.group_queue import GroupQueue
from tailrace.cluster.arbitration.requests import PhaseRequest
from tailrace.cluster.arbitration.setup_costs import JobState
from tailrace.cluster.events import Direction, TransferMeasured
from tailrace.cluster.ids import JobId, NodeGroupId, TenantId
from tailrace.cluster.settings import ClusterRules

G0 = NodeGroupId("g0")


@dataclass(kw_only=True)
class SerialJob:
    id: JobId
    operations_s: tuple[float, ...]
    think_s: float
    tenant: TenantId = TenantId("default")
    offload_s: float = 0.0
    load_s: float = 0.0
    first_at: float = 0.0
    slack_s: float = 0.0
    jitter: float = 0.0
    foretold_late_s: float | None = None
    """By how much later than the job really asks it is expected to; None: nothing is expected of it."""
    asks_at: float | None = None
    """When it will ask; None: it has asked."""
    next_operation: int = 0
    asked_at: float = 0.0
    phases_ended: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    busy_s: float = 0.0


class ClosedLoop:
    def __init__(self, jobs: list[SerialJob], rules: ClusterRules, *, seed: int = 0) -> None:
        self.queue = GroupQueue(G0, rules)
        self.jobs = {job.id: job for job in jobs}
        self.latest_starts: dict[JobId, float] = {}
        self.now = 0.0
        self.on_devices: JobId | None = None
        self.computing: JobId | None = None
        self.prefetched: dict[JobId, float] = {}
        self.num_switches = 0
        self.sent: list[do.Command] = []
        self.operations: dict[JobId, list[float]] = {job.id: [] for job in jobs}
        """Seconds of the operations that each job has begun, before jitter."""
        self._random = random.Random(seed)
        self._due: list[tuple[float, int, Callable[[], list[do.Command]]]] = []
        self._num_pushed = 0
        for job in jobs:
            self._ask_after(job, job.first_at)

    def after(self, seconds: float, act: Callable[[], list[do.Command]]) -> None:
        self._num_pushed += 1
        heapq.heappush(self._due, (self.now + seconds, self._num_pushed, act))

    def run(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            self.now, _, act = heapq.heappop(self._due)
            self._expect()
            self._carry_out(act())
            self.queue.check()
            if (wake_at := self.queue.wake_at()) is not None:
                self.after(wake_at - self.now, lambda: self.queue.tick(self.now))
        self.now = until

    def _expect(self) -> None:
        found = [
            ExpectedPhase(
                owner=JobState(job.id),
                tenant=job.tenant,
                asks_at=job.asks_at + job.foretold_late_s,
                given_up_at=job.asks_at + job.foretold_late_s + 50.0,
            )
            for job in self.jobs.values()
            if job.asks_at is not None and job.asks_at > self.now and job.foretold_late_s is not None
        ]
        self.queue.expect(self.latest_starts, found)

    def _ask_after(self, job: SerialJob, seconds: float) -> None:
        job.asks_at = self.now + seconds
        self.after(seconds, lambda: self._ask(job))

    def _ask(self, job: SerialJob) -> list[do.Command]:
        job.asked_at, job.asks_at = self.now, None
        request = PhaseRequest(
            job=job.id,
            tenant=job.tenant,
            asked_at=self.now,
            operations_s=job.operations_s[job.next_operation :],
            slack_s=job.slack_s,
        )
        return self.queue.ask(request, self.now)

    def _carry_out(self, commands: list[do.Command]) -> None:
        self.sent += commands
        for command in commands:
            match command:
                case do.GrantLease(job=job, num_operations=num_operations):
                    self._compute(self.jobs[job], num_operations)
                case do.Offload(job=job, transfer=transfer):
                    assert self.on_devices == job
                    assert self.computing is None
                    self._move(job, transfer, Direction.OFFLOAD, self.jobs[job].offload_s)
                case do.Load(job=job, transfer=transfer):
                    assert self.on_devices is None
                    assert self.computing is None
                    self.num_switches += 1
                    hidden_s = self.now - self.prefetched.get(job, self.now)
                    self.prefetched = {}
                    self._move(job, transfer, Direction.LOAD, max(0.0, self.jobs[job].load_s - hidden_s))
                case do.Prefetch(job=job, transfer=transfer):
                    assert self.computing is not None
                    self._prefetch(job, transfer)

    def _move(self, job: JobId, transfer: int, direction: Direction, seconds: float) -> None:
        def moved() -> list[do.Command]:
            self.on_devices = job if direction is Direction.LOAD else None
            return self._moved(job, transfer, direction, seconds)

        self.after(seconds, moved)

    def _moved(self, job: JobId, transfer: int, direction: Direction, seconds: float) -> list[do.Command]:
        report = TransferMeasured(
            job=job, group=G0, transfer=transfer, direction=direction, num_bytes=10**9, seconds=seconds
        )
        return self.queue.transferred(report, self.now)

    def _prefetch(self, job: JobId, transfer: int) -> None:
        self.prefetched = {job: self.now}
        seconds = self.jobs[job].load_s

        def prefetched() -> list[do.Command]:
            is_still_near = self.prefetched.get(job) == self.now - seconds
            return self._moved(job, transfer, Direction.PREFETCH, seconds) if is_still_near else []

        self.after(seconds, prefetched)

    def _compute(self, job: SerialJob, num_operations: int) -> None:
        assert self.computing is None, "at most one operation per group at a time"
        assert self.on_devices == job.id == self.queue.resident == self.queue.running, "the resident job computes"
        self.computing = job.id
        job.waits.append(self.now - job.asked_at)
        operations_s = job.operations_s[job.next_operation : job.next_operation + num_operations]
        self.operations[job.id] += operations_s
        seconds = sum(operations_s) * (1 + self._random.uniform(-job.jitter, job.jitter))

        def computed() -> list[do.Command]:
            self.computing = None
            job.busy_s += seconds
            job.next_operation = (job.next_operation + num_operations) % len(job.operations_s)
            return self._go_on(job, seconds)

        self.after(seconds, computed)

    def _go_on(self, job: SerialJob, seconds: float) -> list[do.Command]:
        if job.next_operation != 0:
            self._ask_after(job, 0.0)
            return self.queue.ended(job.id, seconds, False, 0.0, self.now)
        job.phases_ended.append(self.now)
        self._ask_after(job, job.think_s * (1 + self._random.uniform(-job.jitter, job.jitter)))
        self._expect()
        return self.queue.ended(job.id, seconds, False, None, self.now)
