"""Requests and reports are passed to the queue of a node group (``arbitration/group_queue.py``), and what it decides is
noted in the records of the jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tailrace.cluster import commands as do
from tailrace.cluster.arbitration.group_queue import GroupQueue
from tailrace.cluster.arbitration.requests import PhaseRequest
from tailrace.cluster.groups.record import GroupRecord
from tailrace.cluster.ids import JobId, NodeGroupId
from tailrace.cluster.jobs.record import JobRecord
from tailrace.cluster.phases.expected import expected_phases
from tailrace.cluster.rooms import Rooms


def ask(rooms: Rooms, job: JobRecord, now: float) -> Iterator[do.Command]:
    """Queue the job's phase on its node group, if it has one."""
    phase = job.log.phase
    if job.seat is None or phase is None:
        return
    request = PhaseRequest(
        job=job.id,
        tenant=job.tenant,
        asked_at=phase.asked_at,
        operations_s=phase.operations_s,
        slack_s=phase.slack_s,
        state=job.spec.state,
        parts=phase.parts,
        later_parts=job.log.known_parts,
    )
    queue = queue_of(rooms, rooms.groups.named(job.seat.group), now)
    yield from noted(rooms, queue.ask(request, now), now)


def leave(rooms: Rooms, group: GroupRecord, job: JobId, now: float) -> Iterator[do.Command]:
    """The job does not belong to the group any more."""
    yield from noted(rooms, queue_of(rooms, group, now).leave(job, now), now)


def restore(rooms: Rooms, group: NodeGroupId, now: float) -> Iterator[do.Command]:
    """All nodes of the group are there again."""
    yield from noted(rooms, rooms.phases.queues[group].restore(now), now)


def queue_of(rooms: Rooms, group: GroupRecord, now: float) -> GroupQueue:
    """The queue of the group. It knows when its jobs that neither wait nor compute will ask, and when they must get the
    group at the latest, to lose no time."""
    queue = rooms.phases.queues[group.id]
    queue.expect(
        {
            job.id: latest
            for job in group.jobs.values()
            if job.log.phase is None and (latest := job.latest_start(now)) is not None
        },
        expected_phases(group, rooms.rules),
    )
    return queue


def noted(rooms: Rooms, commands: Iterable[do.Command], now: float) -> Iterator[do.Command]:
    """Number the leases among these commands, and note them in the records of their jobs."""
    for command in commands:
        if isinstance(command, do.GrantLease):
            rooms.phases.num_leases += 1
            lease = rooms.phases.num_leases
            rooms.jobs.named(command.job).log.grant(lease, command.num_operations, now)
            rooms.groups.wait_ended(command.group, rooms.rules, now)
            yield replace(command, lease=lease)
        else:
            yield command
