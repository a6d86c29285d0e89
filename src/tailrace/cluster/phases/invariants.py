"""What must hold in the phases room between two events."""

from __future__ import annotations

from tailrace.cluster.groups.record import GroupRecord
from tailrace.cluster.rooms import Rooms


def check(rooms: Rooms) -> None:
    for job in rooms.jobs.every():
        assert job.log.phase is None or job.is_live
    for group in rooms.groups.every():
        _check_group(rooms, group)


def _check_group(rooms: Rooms, group: GroupRecord) -> None:
    queue = rooms.phases.queues[group.id]
    leases = [job.id for job in group.jobs.values() if job.log.is_computing]
    assert len(leases) <= 1, f"{len(leases)} jobs compute on {group.id}"
    running = queue.running
    assert leases == ([] if running is None else [running]), f"{group.id} runs {running}"
    if running is not None:
        assert queue.resident == running, f"{running} computes on {group.id}, {queue.resident} is loaded"
    queue.check()
