"""The limit ``max_stuck_s`` on how long an idle trainer waits for the slowest groups of a batch.

With `keep` under a strict bound no group is dropped, so a response that never ends would stop the run. After
``max_stuck_s`` the groups that the trainer waits for are restarted or dropped, and others take their places. If that
happens several times without a batch in between, the limit is shorter than responses take: the run fails and says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.core import commands as do
from tailrace.core.aborting import abort
from tailrace.core.collection.group_changes import drop, num_members
from tailrace.core.ledger.ledger import BatchState
from tailrace.core.responses.group import Group, GroupPhase
from tailrace.core.rooms import Rooms
from tailrace.core.schedule import OnStuck


def relieve(rooms: Rooms, now: float) -> Iterator[do.Command | None]:
    """Restart or drop the groups that the trainer has waited for longer than ``max_stuck_s``."""
    room, schedule = rooms.collection, rooms.schedule
    if schedule.max_stuck_s is None:
        return
    if not _is_training_held_up(rooms):
        room.stuck_since = None
        return
    if room.stuck_since is None:
        room.stuck_since = now
    if now < room.stuck_since + schedule.max_stuck_s:
        return
    room.stuck_since = None
    room.streaks.num_reliefs += 1
    late, restarts = room.ledger.awaited(), schedule.on_stuck is OnStuck.RESTART
    for group in [rooms.responses.group(number) for number in late]:
        yield from _restart(rooms, group) if restarts else drop_expired(rooms, group, now)
    if restarts:
        yield do.ReportDropped(restarted=tuple(sorted(late)))
    yield None


def _is_training_held_up(rooms: Rooms) -> bool:
    """Whether the trainer is idle only because the current batch waits for its unfinished groups."""
    is_starved = rooms.training.is_starved and rooms.evaluation_is_over()
    return is_starved and rooms.collection.ledger.state is BatchState.STUCK


def drop_expired(rooms: Rooms, group: Group, now: float) -> Iterator[do.Command]:
    """Drop a group that can no longer be trained within the staleness bound."""
    drop(rooms, group, now)
    rooms.collection.unreported[group.id] = GroupPhase.DROPPED
    yield from abort(rooms, group.members.values())


def _restart(rooms: Rooms, group: Group) -> Iterator[do.Command]:
    """Abort all members of a group and start it again from its prompt, as a new group."""
    rooms.collection.ledger.delete(group.id)
    yield from abort(rooms, group.take_members())
    group.begin(num_members(rooms))
    rooms.responses.add(group)
