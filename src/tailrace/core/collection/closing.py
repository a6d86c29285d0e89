"""The end of a round: what happens to the groups that are not part of its batch.

Only this file reads the schedule's ``leftovers`` when a round ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tailrace.core import commands as do
from tailrace.core.aborting import abort
from tailrace.core.collection.group_changes import drop, leave_ledger
from tailrace.core.collection.round import Round
from tailrace.core.ids import GroupId
from tailrace.core.responses.group import Group, GroupPhase
from tailrace.core.responses.response import Response
from tailrace.core.rooms import Rooms
from tailrace.core.schedule import Leftovers, VersionCap


def close_round(rooms: Rooms, round: Round, accepted: tuple[GroupId, ...], now: float) -> Iterator[do.Command]:
    # Sorted by id, because groups that are deferred in the same round have no other order.
    rest = sorted((g for g in rooms.responses.training_groups() if g.is_live), key=lambda g: g.id)
    fate = "interrupted"
    match rooms.schedule.leftovers:
        case Leftovers.RESUME:
            yield from _interrupt(rooms, rest)
        case Leftovers.DROP:
            fate = "dropped"
            for group in rest:
                drop(rooms, group, now)
                yield from abort(rooms, group.members.values())
        case Leftovers.DEFER:
            fate = "deferred"
            for group in rest:
                yield from abort(rooms, defer(rooms, group, now))
                yield from rooms.fleet.interrupt(group.members)
    room = rooms.collection
    leftovers = {g.id for g in rest if g.id not in room.complete} | set(round.quota_leftovers)
    late = leftovers & room.late.keys()
    yield do.CloseRound(
        round=round.number,
        is_long=round.is_long,
        accepted=accepted,
        kept=tuple(sorted(room.complete)),
        late=tuple(sorted(late)),
        **{fate: tuple(sorted(leftovers - late))},
    )


def defer(rooms: Rooms, group: Group, now: float) -> list[Response]:
    """Move a training group to a later round. Return the members that it does not keep: the caller aborts them.

    The group joins the long queue. But a group that replaced another one started later than the rest of its round, so
    it need not be long: it goes first in the next short round instead.
    """
    room = rooms.collection
    group.move(GroupPhase.DEFERRED, now=now)
    leave_ledger(rooms, group)
    rooms.responses.stop_waiting_for(group.id)
    room.complete.pop(group.id, None)
    room.num_live -= 1
    (room.late if group.is_replacement else room.queue)[group.id] = None
    return group.take_surplus() if rooms.schedule.keep_deferred_tokens else group.take_members()


def _interrupt(rooms: Rooms, rest: Sequence[Group]) -> Iterator[do.Command]:
    """Interrupt every training response. One that already has tokens of too many versions is restarted instead."""
    for response in _capped(rooms):
        fresh = rooms.responses.group(response.id.group).restart_member(response)
        yield from abort(rooms, [response])
        rooms.responses.wait(fresh)
    yield from rooms.fleet.interrupt(member for group in rest for member in group.members)


def is_held_open(rooms: Rooms) -> bool:
    """Whether the round waits for a response that may not be interrupted again."""
    schedule = rooms.schedule
    if schedule.max_versions_per_sample is None:
        return False
    may_restart = schedule.version_cap is VersionCap.RESTART
    return any(not may_restart or r.id.attempt >= schedule.max_restarts_per_sample for r in _capped(rooms))


def _capped(rooms: Rooms) -> list[Response]:
    """Return the unfinished responses that may already have tokens of ``max_versions_per_sample`` versions."""
    if (cap := rooms.schedule.max_versions_per_sample) is None:
        return []
    groups = [group for group in rooms.responses.training_groups() if group.phase is GroupPhase.OPEN]
    unfinished = [r for group in groups for r in group.members.values() if not r.has_ended]
    return [r for r in unfinished if _num_versions(rooms, r) >= cap]


def _num_versions(rooms: Rooms, response: Response) -> int:
    versions = {version for version, _ in response.segments}
    if response.instance is not None:
        versions.add(rooms.fleet.version_at(response.instance))
    return len(versions)
