"""In which order queued jobs are considered for a place.

``Order.FIRST_COME`` is exactly that. With ``Order.RESPONSE`` fair queueing picks the tenant, as it does for phases
(``arbitration/fair_share.py``), and the highest response ratio comes first inside a tenant. A tenant is charged for the
device time of its jobs: for what a job is expected to take when it is admitted, and corrected when the job ends.
"""

from __future__ import annotations

from tailrace.cluster.ids import TenantId
from tailrace.cluster.job_record import JobRecord
from tailrace.cluster.rules import Order
from tailrace.cluster.state import ClusterState

_UNKNOWN_S = 3600.0
"""Seconds that a job is expected to take if nothing is known about it."""


def in_order(state: ClusterState, now: float) -> list[JobRecord]:
    waiting = list(state.queue.values())
    if state.rules.order is Order.FIRST_COME:
        return waiting
    by_ratio = sorted(waiting, key=lambda job: (-_response_ratio(job, now), job.number))
    of_tenants: dict[TenantId, list[JobRecord]] = {}
    for job in by_ratio:
        of_tenants.setdefault(job.tenant, []).append(job)
    starts = {
        job.id: start
        for tenant, jobs in of_tenants.items()
        for job, start in zip(jobs, state.shares.starts(tenant, map(_device_seconds, jobs)), strict=True)
    }
    return sorted(by_ratio, key=lambda job: starts[job.id])


def enter(state: ClusterState, job: JobRecord) -> None:
    """The job joins the queue."""
    if all(other.tenant != job.tenant for other in state.queue.values()):
        state.shares.enter(job.tenant)
    state.queue[job.id] = job


def charge(state: ClusterState, job: JobRecord) -> None:
    """The job is admitted: its tenant is charged for what it is expected to take."""
    job.charged_device_s = _device_seconds(job)
    state.shares.begin(job.tenant, job.charged_device_s)


def settle(state: ClusterState, job: JobRecord, now: float) -> None:
    """The job has ended: its tenant is charged for what it really took instead."""
    if job.admitted_at is not None:
        state.shares.charge(job.tenant, _num_devices(job) * (now - job.admitted_at) - job.charged_device_s)


def _response_ratio(job: JobRecord, now: float) -> float:
    """(W + S) / S with the job's whole duration as S."""
    return 1.0 + (now - job.submitted_at) / _expected_s(job)


def _expected_s(job: JobRecord) -> float:
    return _UNKNOWN_S if job.trace is None else job.spec.steps * job.trace.step_s


def _device_seconds(job: JobRecord) -> float:
    return _num_devices(job) * _expected_s(job)


def _num_devices(job: JobRecord) -> float:
    """Rollout devices, which are the job's own, and its part of the training devices."""
    return job.spec.rollout_devices + job.duty * job.spec.train_devices
