"""How batches are collected: rounds open, prompts are requested, and a full batch goes to training.

    batch of step r:  launch groups  ->  complete B of them  ->  collect: close the round  ->  train r -> r+1

With rounds, a batch is collected from one round, which begins when the version it needs is published. Without rounds
(`keep`), groups start whenever the ledger has room, and a batch is collected when the trainer is free.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tailrace.core import commands as do
from tailrace.core.aborting import abort
from tailrace.core.collection.closing import close_round, is_held_open
from tailrace.core.collection.facts import close_group
from tailrace.core.collection.group_changes import admit, begin
from tailrace.core.collection.relief import drop_expired
from tailrace.core.collection.round import Round
from tailrace.core.collection.rounds import (
    TAKES_DEFERRED,
    is_used_up,
    next_round,
    num_missing,
    unfinished_prompts,
)
from tailrace.core.fleet.lending import piece_replicas
from tailrace.core.fleet.resizing import choose_size
from tailrace.core.ids import GroupId
from tailrace.core.requests import OpenRequest
from tailrace.core.responses.group import Group, GroupPhase
from tailrace.core.responses.response import ResponsePhase
from tailrace.core.rooms import Rooms
from tailrace.core.schedule import Stream


def abort_surplus(rooms: Rooms, now: float) -> Iterator[do.Command]:
    """Abort the surplus members of complete groups, and report groups that were filtered or dropped."""
    room = rooms.collection
    surplus, room.surplus = room.surplus, {}
    unreported, room.unreported = room.unreported, {}
    # No worker is busy with these responses, so no Abort or AbortScores will name them.
    idle = (ResponsePhase.PENDING, ResponsePhase.GENERATED)
    responses = tuple(sorted(each.id for each in surplus.values() if each.phase in idle))
    yield from abort(rooms, surplus.values())
    filtered = tuple(sorted(group for group, phase in unreported.items() if phase is GroupPhase.FILTERED))
    dropped = tuple(sorted(group for group in unreported if group not in filtered))
    if unreported or responses:
        yield do.ReportDropped(filtered=filtered, dropped=dropped, responses=responses)


def collect(rooms: Rooms, now: float) -> Iterator[do.Command | None]:
    """Hand a full batch to training, and close its round if there are rounds."""
    room = rooms.collection
    if not _may_collect(rooms):
        return
    round, room.round = room.round, None
    consumption = room.ledger.consume(rooms.schedule.batch_size if round is None else round.batch_size)
    for group_id in consumption.batch:
        rooms.responses.group(group_id).move(GroupPhase.TAKEN, now=now)
        del room.complete[group_id]
    room.num_live -= len(consumption.batch)
    rooms.training.add_batch(consumption.batch)
    room.streaks.num_reliefs = 0
    yield None
    if round is None:
        for group_id in consumption.expired:
            yield from drop_expired(rooms, rooms.responses.group(group_id), now)
        return
    room.search.note(round, now - (now if round.began_at is None else round.began_at))
    room.filtered_share.fade()
    yield from close_round(rooms, round, consumption.batch, now)
    rooms.fleet.round_ended(is_long=round.is_long, num_launched=round.num_begun * round.num_members)


def _may_collect(rooms: Rooms) -> bool:
    room = rooms.collection
    if room.round is None:
        # While the trainer is busy the batch can still get fresher groups.
        return not rooms.schedule.has_rounds and not rooms.training.num_batches and room.ledger.is_ready
    return room.ledger.has(room.round.batch_size) and not is_held_open(rooms)


def commit(rooms: Rooms, now: float) -> Iterator[None]:
    """Choose complete groups of the round that are trained while it runs, if the trainer is free and the schedule
    streams steps. The groups belong to the batch from then on."""
    room, schedule, training = rooms.collection, rooms.schedule, rooms.training
    if not schedule.streams or rooms.run.is_stopping or room.round is None or room.round.number != training.version:
        return
    if _may_collect(rooms) or not training.awaits_piece(rooms.evaluation_is_over()):
        return
    if schedule.stream is Stream.ONCE and training.has_streamed:
        return
    if piece_replicas(rooms) is None:
        return
    count = min(room.ledger.num_uncommitted, room.round.batch_size - training.num_streamed_groups)
    if count >= schedule.stream_groups:
        training.add_piece(room.ledger.commit(count))
        yield None


def open_round(rooms: Rooms, now: float) -> Iterator[do.Command | None]:
    room = rooms.collection
    if not rooms.schedule.has_rounds or room.round is not None or (round := next_round(rooms)) is None:
        return
    room.round = round
    choose_size(rooms, round)
    live = [group for group in rooms.responses.training_groups() if group.is_live]
    round.num_begun = len(live)
    resumed = [group.id for group in live if group.version is not None]
    restarted: list[GroupId] = []
    for group in _take_deferred(rooms):
        yield from _reopen(rooms, group, now)
        (restarted if group.version is None else resumed).append(group.id)
    yield do.OpenRound(
        round=round.number,
        is_long=round.is_long,
        version=round.version,
        num_prompts=round.size,
        num_responses=round.num_members,
        resumed=tuple(resumed),
        restarted=tuple(restarted),
        parallel_size=rooms.fleet.parallel_size,
    )
    yield None


def request_prompts(rooms: Rooms, now: float) -> Iterator[do.Command | None]:
    """Fill the round, or the ledger, first with deferred groups, then with held prompts, then with new prompts."""
    room = rooms.collection
    if room.requested is not None or num_missing(rooms) <= 0:
        return
    for group in _take_deferred(rooms):  # they replace groups that were filtered or dropped
        yield None
        had_tokens = group.version is not None
        yield from _reopen(rooms, group, now)
        if had_tokens and group.version is None:
            yield do.ReportDropped(restarted=(group.id,))
    visited = unfinished_prompts(rooms)
    for group_id in _take_held(rooms, visited):
        yield None
        begin(rooms, group_id, room.held.pop(group_id))
    if (count := num_missing(rooms)) <= 0:
        return
    if room.round is not None and not room.round.has_tried_all and is_used_up(rooms):
        room.round.has_tried_all = True
        yield None
    elif not _are_all_held(rooms, visited):
        room.requested = OpenRequest(since=now, version=rooms.training.version)
        epoch, offset = room.cursor
        yield do.RequestPrompts(source=rooms.schedule.train_source, epoch=epoch, offset=offset, count=count)


def _take_deferred(rooms: Rooms) -> Iterator[Group]:
    """Remove and return deferred groups while the round needs more groups. Long rounds take them from the long queue,
    short rounds from the groups that started late in an earlier round."""
    room, round = rooms.collection, rooms.collection.round
    if round is None:
        return
    sources = [room.queue] if round.is_long else [room.late]
    if round.is_flush or round.has_tried_all:
        sources = [room.queue, room.late]
    for source in sources:
        while num_missing(rooms) > 0 and (number := _first_to_take(rooms, round, source)) is not None:
            del source[number]
            if rooms.schedule.edition >= TAKES_DEFERRED:
                round.quota_leftovers.pop(number, None)  # it is no longer left over
            yield rooms.responses.group(number)


def _first_to_take(rooms: Rooms, round: Round, source: Mapping[GroupId, object]) -> GroupId | None:
    """Return the first deferred group that may join the round; None if there is none. A group that has just been left
    over under the quotas would be left over again."""
    keeps_out = rooms.schedule.edition >= TAKES_DEFERRED and not (round.is_long or round.has_tried_all)
    return next((number for number in source if not keeps_out or number not in round.quota_leftovers), None)


def _reopen(rooms: Rooms, group: Group, now: float) -> Iterator[do.Command]:
    """Reopen a deferred group. It keeps its tokens if they are fresh enough for this batch, else it starts again."""
    room = rooms.collection
    assert room.round is not None
    if group.version is not None and room.ledger.can_reserve(group.version):
        room.ledger.reserve(group.id, group.version)
    else:
        if group.version is not None:
            yield from abort(rooms, group.take_members())
        group.begin(room.round.num_members)
    group.move(GroupPhase.OPEN, now=now)
    admit(rooms, group)
    group.conclude(now=now, filters_equal=rooms.schedule.filters_equal_scores)
    if group.phase is not GroupPhase.OPEN:
        close_group(rooms, group, now)


def _take_held(rooms: Rooms, visited: set[int]) -> Iterator[GroupId]:
    """Return held prompts that may start, while more groups are needed. Each is added to ``visited``."""
    for group_id in list(rooms.collection.held):
        if num_missing(rooms) > 0 and group_id.prompt not in visited:
            yield group_id
            if rooms.schedule.defers:
                visited.add(group_id.prompt)


def _are_all_held(rooms: Rooms, visited: set[int]) -> bool:
    """Whether requesting more would return only prompts that are unfinished, or that the round has tried while others
    wait for training."""
    if is_used_up(rooms) and rooms.training.num_waiting_groups:
        return True
    return 0 < rooms.schedule.epoch_size <= len(visited)
