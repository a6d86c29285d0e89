"""Events of the collection room: prompts arrive, and groups get the last score they need."""

from __future__ import annotations

from tailrace.core import events as ev
from tailrace.core.collection.closing import defer
from tailrace.core.collection.group_changes import begin, drop, leave_ledger
from tailrace.core.collection.rounds import is_within_quota, num_missing, unfinished_prompts
from tailrace.core.errors import CoreError
from tailrace.core.ids import GroupId
from tailrace.core.responses.group import Group, GroupPhase
from tailrace.core.rooms import Rooms
from tailrace.core.schedule import Leftovers


def prompts_offered(rooms: Rooms, event: ev.PromptsOffered, now: float) -> None:
    """Start the offered prompts while the round has room. Hold the others; they start before later prompts."""
    room, cursor = rooms.collection, (event.next_epoch, event.next_offset)
    if room.requested is None or cursor <= room.cursor:
        rooms.run.refuse(f"prompts of '{event.source}', which were not asked for")
        return
    room.requested, room.cursor = None, cursor
    visited, count = unfinished_prompts(rooms), num_missing(rooms)
    for (epoch, prompt), domain in zip(event.prompts, event.domains or [""] * len(event.prompts), strict=True):
        group = GroupId(event.source, epoch, prompt)
        if rooms.responses.has_group(group):
            raise CoreError(f"group {group} was offered twice")
        if count <= 0 or group.prompt in visited:
            room.held[group] = domain
            continue
        begin(rooms, group, domain)
        count -= 1
        if rooms.schedule.defers:
            visited.add(group.prompt)


def close_group(rooms: Rooms, group: Group, now: float) -> None:
    """Filter, drop or complete a training group that has all the scores it needs."""
    room = rooms.collection
    room.surplus.update({response.id: response for response in group.take_unsettled()})
    room.filtered_share.add(is_filtered=group.phase is GroupPhase.FILTERED)
    if group.phase is not GroupPhase.COMPLETE:
        leave_ledger(rooms, group)
        rooms.responses.remove(group.id)
        room.unreported[group.id] = group.phase
        room.num_live -= 1
        room.streaks.num_dropped += group.phase is GroupPhase.DROPPED
        room.streaks.num_useless += 1
        return
    room.streaks.num_dropped = room.streaks.num_useless = 0
    if is_within_quota(rooms, group):
        # The oldest version among the members that are kept may be newer than the reserved one.
        room.ledger.occupy(group.id, group.oldest_version())
        room.complete[group.id] = None
        return
    assert room.round is not None
    room.round.quota_leftovers[group.id] = group.domain
    if rooms.schedule.leftovers is Leftovers.DROP:
        drop(rooms, group, now)
    else:
        defer(rooms, group, now)  # all members are settled, so none must be aborted


def run_resumed(rooms: Rooms, event: ev.RunResumed, now: float) -> None:
    """Reset the request for prompts: it will not be answered."""
    rooms.collection.requested = None
    rooms.collection.streaks.num_dropped = rooms.collection.streaks.num_reliefs = 0
