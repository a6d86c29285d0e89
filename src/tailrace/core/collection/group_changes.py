"""Changes of one training group that facts and rules share. Each keeps the room's indexes up to date."""

from __future__ import annotations

from tailrace.core.ids import GroupId
from tailrace.core.responses.group import Group, GroupPhase
from tailrace.core.rooms import Rooms


def num_members(rooms: Rooms) -> int:
    """Return with how many responses a new group begins."""
    round = rooms.collection.round
    return rooms.schedule.num_members if round is None else round.num_members


def begin(rooms: Rooms, group_id: GroupId, domain: str) -> None:
    """Make a group for a training prompt."""
    group = Group(id=group_id, num_needed=rooms.schedule.group_size, domain=domain)
    group.begin(num_members(rooms))
    admit(rooms, group)


def admit(rooms: Rooms, group: Group) -> None:
    """Add an open group, with the members it has, to the round."""
    round = rooms.collection.round
    if round is not None:
        group.is_replacement = round.num_begun >= round.size
        round.num_begun += 1
    rooms.collection.num_live += 1
    rooms.responses.add(group)
    rooms.fleet.note_event()


def drop(rooms: Rooms, group: Group, now: float) -> None:
    """Drop a training group: it leaves without being trained."""
    group.move(GroupPhase.DROPPED, now=now)
    leave_ledger(rooms, group)
    rooms.responses.remove(group.id)
    rooms.collection.complete.pop(group.id, None)
    rooms.collection.num_live -= 1


def leave_ledger(rooms: Rooms, group: Group) -> None:
    if group.id in rooms.collection.ledger:
        rooms.collection.ledger.delete(group.id)
