"""Events of the groups room: nodes are lost and return."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster.admission.claims import drop_claim
from tailrace.cluster.groups.seat import Displaced
from tailrace.cluster.groups.seating import leave_seat, open_group
from tailrace.cluster.phases import leases
from tailrace.cluster.rooms import Rooms


def node_lost(rooms: Rooms, event: ev.NodeLost, now: float) -> Iterator[do.Command]:
    """The node's group cannot be used. Its jobs lose the phase that they were in, and need another group."""
    group = rooms.groups.find_node(event.node)
    if group is None or event.node in group.lost:
        rooms.watch.ignore()
        return
    was_usable = group.is_usable
    group.lost.add(event.node)
    for name in rooms.admission.claimants(group.id):
        drop_claim(rooms, name)
        rooms.admission.look_again()  # it claims another group
    if not was_usable:
        return
    residents = list(group.jobs.values())
    for job in residents:
        leave_seat(rooms, job)
        job.lose_group(Displaced(group=group.id, at=now))
    rooms.phases.group_lost(group.id, [job.id for job in residents], now)
    rooms.groups.timetable.lose(group.id)
    yield from ()


def node_returned(rooms: Rooms, event: ev.NodeReturned, now: float) -> Iterator[do.Command]:
    group = rooms.groups.find_node(event.node)
    if group is None or event.node not in group.lost:
        rooms.watch.ignore()
        return
    group.lost.discard(event.node)
    if group.is_usable:
        open_group(rooms, group.id)
        rooms.groups.timetable.restore(group.id)
        yield from leases.restore(rooms, group.id, now)
