"""A long job among a stream of short ones is admitted within the bound of ``cluster/admission/order.py``."""

from __future__ import annotations

import heapq

import pytest

from cluster.small_cluster import cluster, trace
from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster.ids import JobId, TenantId
from tailrace.cluster.job_spec import JobSpec
from tailrace.cluster.scheduler import Scheduler
from tailrace.cluster.settings import Order, Policy

A, B = TenantId("a"), TenantId("b")
SHORT_S, LONG_S = 100.0, 1000.0
SUBMITTED = 250.0
HORIZON_S = 30_000.0


def job(name: str, seconds: float, busy_s: float, tenant: TenantId = A) -> JobSpec:
    return JobSpec(id=JobId(name), train_devices=8, trace=trace(10, busy_s), steps=round(seconds / 10), tenant=tenant)


def stream(gap_s: float, busy_s: float = 4.0, tenant: TenantId = A) -> list[tuple[float, JobSpec]]:
    """Short jobs, from the beginning to the horizon."""
    times = [number * gap_s for number in range(round(HORIZON_S / gap_s))]
    return [(at, job(f"{tenant}-{at:.0f}", SHORT_S, busy_s, tenant)) for at in times]


class Queue:
    """Plays jobs that take as long as they would alone."""

    def __init__(self, scheduler: Scheduler, jobs: list[tuple[float, JobSpec]], overdue_at: float) -> None:
        self.scheduler, self.overdue_at = scheduler, overdue_at
        self.num_ahead = 0
        """Jobs of the long one's tenant that came before it and wait when it becomes overdue."""
        self.admitted: list[JobId] = []
        self._agenda = [(at, 1, spec.id, spec) for at, spec in jobs]
        self._ends: list[tuple[float, int, str, JobSpec]] = []
        heapq.heapify(self._agenda)

    def admitted_at(self, name: str) -> float | None:
        """When the job is admitted; None: not within the horizon."""
        while self._agenda and self._agenda[0][0] < HORIZON_S:
            now, is_new, _, spec = heapq.heappop(self._agenda)
            if now <= self.overdue_at:
                self._count()
            event = ev.JobSubmitted(job=spec) if is_new else ev.JobEnded(job=spec.id)
            for command in self.scheduler.handle(event, now=now):
                if isinstance(command, do.Admit):
                    self.admitted.append(command.job)
                    if command.job == name:
                        return now
                    record = self.scheduler.rooms.jobs.named(command.job)
                    heapq.heappush(self._agenda, (now + (record.spec.alone_s or 0.0), 0, command.job, record.spec))
            self.scheduler.check()
        return None

    def _count(self) -> None:
        waiting = self.scheduler.rooms.jobs.queued()
        self.num_ahead = sum(record.submitted_at < SUBMITTED and record.tenant == A for record in waiting)


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("gap_s", [20.0, 45.0, 90.0, 100.0, 110.0])
@pytest.mark.parametrize("busy_s", [2.0, 7.0])
def test_a_long_job_among_a_stream_of_short_ones_is_admitted_within_the_stated_bound(
    order: Order, policy: Policy, gap_s: float, busy_s: float
) -> None:
    """The long job uses its group for 2 s or 7 s of 10 s: beside the latter there is no room for a short one."""
    most_s = 500.0 if order is Order.RESPONSE else 0.0
    scheduler = cluster(policy=policy, order=order, max_queue_s=500.0)
    jobs = [*stream(gap_s), (SUBMITTED, job("long", LONG_S, busy_s))]
    queue = Queue(scheduler, jobs, SUBMITTED + most_s)
    at = queue.admitted_at("long")
    assert at is not None
    assert at - SUBMITTED <= most_s + (queue.num_ahead + 1) * SHORT_S


def test_without_the_bound_short_jobs_pass_a_long_one_for_ever() -> None:
    """So the test above can fail."""
    scheduler = cluster(policy=Policy.ISOLATED, order=Order.RESPONSE, max_queue_s=1e9)
    jobs = [*stream(90.0), (SUBMITTED, job("long", LONG_S, 2.0))]
    assert Queue(scheduler, jobs, SUBMITTED).admitted_at("long") is None


@pytest.mark.parametrize("weight", [1.0, 3.0])
@pytest.mark.parametrize("gap_s", [60.0, 90.0, 150.0])
def test_with_two_tenants_the_bound_counts_the_share_of_the_other(weight: float, gap_s: float) -> None:
    scheduler = cluster(policy=Policy.ISOLATED, order=Order.RESPONSE, max_queue_s=500.0, tenants=((B, weight),))
    jobs = [*stream(gap_s), *stream(gap_s, tenant=B), (SUBMITTED, job("long", LONG_S, 4.0))]
    queue = Queue(scheduler, jobs, SUBMITTED + 500.0)
    at = queue.admitted_at("long")
    assert at is not None
    assert at - SUBMITTED <= 500.0 + (queue.num_ahead + 1) * SHORT_S * (1 + weight) + SHORT_S


def test_overdue_jobs_of_a_tenant_go_by_submission_and_the_shares_of_tenants_hold() -> None:
    scheduler = cluster(policy=Policy.ISOLATED, order=Order.RESPONSE, max_queue_s=50.0, tenants=((B, 2.0),))
    jobs = [(0.0, job("running", 100.0, 4.0))]
    jobs += [(1.0 + number, job(f"a{number}", 200.0 - 10 * number, 4.0)) for number in range(10)]
    jobs += [(20.0 + number, job(f"b{number}", 200.0, 4.0, B)) for number in range(10)]
    queue = Queue(scheduler, jobs, SUBMITTED)
    assert queue.admitted_at("a3") is not None
    order = queue.admitted
    assert [name for name in order if name.startswith("a")] == ["a0", "a1", "a2", "a3"]
    assert len([name for name in order if name.startswith("b")]) in (6, 7, 8), "two for each one of tenant a"
