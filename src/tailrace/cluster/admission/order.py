"""In which order queued jobs are considered for a place.

``Order.FIRST_COME`` is exactly that. With ``Order.RESPONSE`` fair queueing picks the tenant, as it does for phases
(``arbitration/fair_share.py``), and the highest response ratio comes first inside a tenant. A tenant is charged for the
device time of its jobs: for what a job is expected to take when it is admitted, and corrected when the job ends.

No job starves. The ratio of a long job grows slowly, so short ones that keep coming could pass it for ever. Jobs that
have waited longer than ``max_queue_s`` are therefore *overdue*: they come before the others of their tenant, in the
order in which they were submitted. Let n earlier jobs of the tenant still wait when a job becomes overdue, let no job
run longer than L, and let there be one tenant. As long as no node is lost, jobs end when expected, and none is
displaced, the job is admitted after at most

    max_queue_s + (n + 1) L

Proof: from then on only those n are ahead. The first of the queue that finds no place claims a group, and nobody who
would stay longer joins it (``rules.py``). So after at most L the group is empty, rollout devices of the jobs that
ran have been given back, and the first of the queue is admitted. That happens n + 1 times at most.

With m tenants of weights w_i, the others get their shares meanwhile. If all jobs use the same number of devices and
their demand is known (an unknown job is charged an hour), they get at most w_i / w times what the job's own tenant with
weight w gets, and each one turn more:

    max_queue_s + (n + 1) L (sum of w_i) / w + (m - 1) L

With ``Order.FIRST_COME`` the first bound holds from the submission on, without ``max_queue_s`` and over all tenants.
"""

from __future__ import annotations

import math

from tailrace.cluster.ids import TenantId
from tailrace.cluster.jobs.record import JobRecord
from tailrace.cluster.rooms import Rooms
from tailrace.cluster.settings import Order

_UNKNOWN_S = 3600.0
"""Seconds that a job is expected to take if nothing is known about it."""


def in_order(rooms: Rooms, now: float) -> list[JobRecord]:
    waiting = list(rooms.jobs.queued())
    if rooms.rules.order is Order.FIRST_COME:
        return waiting
    by_ratio = sorted(waiting, key=lambda job: (*_urgency(job, rooms.rules.max_queue_s, now), job.number))
    of_tenants: dict[TenantId, list[JobRecord]] = {}
    for job in by_ratio:
        of_tenants.setdefault(job.tenant, []).append(job)
    starts = {
        job.id: start
        for tenant, jobs in of_tenants.items()
        for job, start in zip(jobs, rooms.admission.shares.starts(tenant, map(_device_seconds, jobs)), strict=True)
    }
    return sorted(by_ratio, key=lambda job: starts[job.id])


def changes_at(rooms: Rooms, now: float) -> float:
    """When another job comes first of its tenant and size, only because time passes; infinite: never.

    The others wait behind the first, or were tried and found no place, so their order does not matter. A job passes the
    first when its ratio, which grows faster, has become the larger one, or when it is overdue. A ratio grows evenly, so
    without other events each job becomes the first only once. A second is added, so that rounding does no harm.
    """
    if rooms.rules.order is Order.FIRST_COME:
        return math.inf
    limit_s, firsts = rooms.rules.max_queue_s, dict[tuple[TenantId, int], JobRecord]()
    at = math.inf
    for job in in_order(rooms, now):
        first = firsts.setdefault((job.tenant, job.spec.train_devices), job)
        if first is not job and now - first.submitted_at <= limit_s:
            at = min(at, job.submitted_at + limit_s, _passes_at(job, first))
    return max(at, now) + 1.0


def _passes_at(job: JobRecord, ahead: JobRecord) -> float:
    """When the response ratios of the two are equal; infinite: that of the job grows no faster."""
    own_s, other_s = _expected_s(job), _expected_s(ahead)
    if own_s >= other_s:
        return math.inf
    return (job.submitted_at * other_s - ahead.submitted_at * own_s) / (other_s - own_s)


def enter(rooms: Rooms, job: JobRecord) -> None:
    """The job joins the queue."""
    if not rooms.jobs.is_tenant_queued(job.tenant):
        rooms.admission.shares.enter(job.tenant)
    rooms.jobs.enqueue(job)
    rooms.admission.look_again()


def begin(rooms: Rooms, job: JobRecord, now: float) -> None:
    """The job is admitted: its tenant is charged for what it is expected to take."""
    seconds = _device_seconds(job)
    rooms.jobs.begin(job, seconds, now)
    rooms.admission.take_devices(job.spec.rollout_devices)
    rooms.admission.shares.begin(job.tenant, seconds)


def settle(rooms: Rooms, job: JobRecord, now: float) -> None:
    """The job has ended: its tenant is charged for what it really took instead."""
    if job.admitted_at is not None:
        seconds = _num_devices(job) * (now - job.admitted_at) - job.charged_device_s
        rooms.admission.shares.charge(job.tenant, seconds)


def _urgency(job: JobRecord, max_queue_s: float, now: float) -> tuple[bool, float]:
    """A key that sorts jobs of a tenant: overdue ones by submission, then the others by ratio."""
    is_overdue = now - job.submitted_at > max_queue_s
    return not is_overdue, float(job.number) if is_overdue else -_response_ratio(job, now)


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
