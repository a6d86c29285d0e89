"""A job leaves its place, or a node group opens otherwise: others may find a place, so admission looks again."""

from __future__ import annotations

from tailrace.cluster.groups.record import GroupRecord
from tailrace.cluster.ids import NodeGroupId
from tailrace.cluster.jobs.record import JobRecord
from tailrace.cluster.rooms import Rooms


def leave_seat(rooms: Rooms, job: JobRecord) -> GroupRecord | None:
    """Take the job's place away. Returns the group that it left; None: it had no place."""
    if job.seat is None:
        return None
    group = rooms.groups.unseat(job, job.seat)
    open_group(rooms, group.id)
    return group


def open_group(rooms: Rooms, group: NodeGroupId) -> None:
    """The group may have room for another job from now on."""
    rooms.groups.open(group)
    rooms.admission.look_again()
