"""The head: a job that waits for a place, what is kept for it, and when it will start."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tailrace.cluster.groups.record import GroupRecord
from tailrace.cluster.ids import NodeGroupId
from tailrace.cluster.jobs.record import JobRecord
from tailrace.cluster.rooms import Rooms
from tailrace.cluster.settings import Policy


@dataclass(slots=True, kw_only=True)
class Head:
    """A job that waits for a place, and what is kept for it."""

    job: JobRecord
    at: float
    """When it will start, if all jobs keep their present pace; infinite: not known."""
    promised: float
    """The earliest start that was forecast since it has its claim. Others may use its group until then."""
    group: NodeGroupId | None
    """The group that it claims; None: no group of its size is usable now."""
    spare_devices: int
    """Rollout devices that others may have and still leave it enough at its start."""


def devices_needed(job: JobRecord) -> int:
    """Rollout devices that the job still has to get. A displaced job has them."""
    return 0 if job.is_live else job.spec.rollout_devices


def head_of(rooms: Rooms, job: JobRecord, now: float) -> Head:
    group, group_at = _group_for(rooms, job, now)
    needed, free, devices_at = devices_needed(job), rooms.admission.free_rollout_devices, now
    for at, other in _endings(rooms.jobs.live(), now):
        if free < needed:
            devices_at = at
        elif at > max(group_at, devices_at) or math.isinf(at):
            break
        free += other.spec.rollout_devices
    if free < needed:
        devices_at = math.inf
    at = max(group_at, devices_at)
    is_kept = group is not None and group == rooms.admission.claims.get(job.id)
    promised = min(at, rooms.admission.promises.get(job.id, math.inf)) if is_kept else at
    return Head(job=job, at=at, promised=promised, group=group, spare_devices=free - needed)


def _group_for(rooms: Rooms, job: JobRecord, now: float) -> tuple[NodeGroupId | None, float]:
    """The group that the job claims, and when it will have room."""
    usable = [
        group
        for group in rooms.groups.every()
        if group.facts.devices == job.spec.train_devices and group.is_usable and group.can_hold(job.spec)
    ]
    kept = [group for group in usable if group.id == rooms.admission.claims.get(job.id)]
    times = [(_free_at(rooms, group, job, now), group.id) for group in kept or usable]
    at, found = min(times, default=(math.inf, None))
    return found, at


def _free_at(rooms: Rooms, group: GroupRecord, job: JobRecord, now: float) -> float:
    """When the group will have room for the job: surely when it is empty, perhaps earlier."""
    endings = _endings(group.jobs.values(), now)
    if not endings:
        return now
    if rooms.rules.policy is Policy.ISOLATED or job.trace is None or job.duty > rooms.rules.max_duty:
        return endings[-1][0]
    if group.has_place_for(job, rooms.rules) and (at := group.joinable_from(rooms.rules, now)) > now:
        return min(at, endings[-1][0])
    # When a job has ended, the group has one less than it may have: only duty and bytes can still be in the way.
    duty, num_bytes = group.duty, sum(other.spec.state.total for _, other in endings)
    for at, other in endings[:-1]:
        duty, num_bytes = duty - other.duty, num_bytes - other.spec.state.total
        has_bytes = group.facts.host_bytes is None or num_bytes + job.spec.state.total <= group.stored_bytes
        if duty + job.duty <= rooms.rules.max_duty and has_bytes:
            return at
    return endings[-1][0]


def _endings(jobs: Iterable[JobRecord], now: float) -> list[tuple[float, JobRecord]]:
    """When each job will end, the first one first."""
    ends = [(job.ends_at(now), job) for job in jobs]
    known = [(math.inf if at is None else at, job) for at, job in ends]
    return sorted(known, key=lambda pair: (pair[0], pair[1].number))
