"""Rounds: each round launches the groups from which the batch of one step is collected.

Without over-provisioning every round is short and launches exactly a batch. With `defer`, a short round launches more
groups than it trains, and unfinished groups join the long queue. As soon as the queue holds a batch, the next round is
long: it launches exactly a batch, from the front of the queue.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tailrace.core.collection.round import Round
from tailrace.core.responses.group import Group
from tailrace.core.schedule import EpochEnd

if TYPE_CHECKING:
    from tailrace.core.rooms import Rooms

TAKES_DEFERRED = 2
"""Edition of the rules from which on a round that has tried all other prompts takes deferred ones."""


def next_round(rooms: Rooms) -> Round | None:
    """Return the round that may begin now; None if none may."""
    room, schedule, published = rooms.collection, rooms.schedule, rooms.training.published
    number = room.ledger.current
    if number >= schedule.max_steps or published < number - schedule.rounds_ahead:
        return None
    num_kept, num_members = room.search.launch(schedule)
    size, batch_size = _with_filtered(rooms, num_kept), schedule.batch_size
    is_long, is_flush = len(room.queue) >= batch_size, False
    if not is_long and (remainder := _remainder(rooms, size)) is not None:
        is_long, is_flush, batch_size = True, True, min(remainder, batch_size)
    return Round(
        number=number,
        is_long=is_long,
        version=published,
        size=batch_size if is_long else size,
        num_kept=batch_size if is_long else num_kept,
        num_members=schedule.group_size if is_long else num_members,
        batch_size=batch_size,
        is_flush=is_flush,
    )


def _with_filtered(rooms: Rooms, size: int) -> int:
    """Return how many prompts a short round launches instead of ``size``, because some groups will be filtered."""
    schedule, room = rooms.schedule, rooms.collection
    if not schedule.launches_for_filter:
        return size
    return min(size + room.filtered_share.expected(schedule.batch_size), schedule.largest_round)


def _remainder(rooms: Rooms, size: int) -> int | None:
    """Return how many prompts of the current pass over the data are left to train, if the schedule flushes them and
    they are too few for another short round; else None."""
    room, schedule = rooms.collection, rooms.schedule
    if schedule.epoch_end is EpochEnd.CARRY or not schedule.epoch_size:
        return None
    epoch, offset = room.cursor
    waiting = [*room.queue, *room.late, *room.held]
    if waiting and min(group.epoch for group in waiting) < epoch:
        return sum(group.epoch < epoch for group in waiting)
    fresh = schedule.epoch_size - offset
    return len(waiting) + fresh if fresh < size else None


def num_missing(rooms: Rooms) -> int:
    """Return how many more groups should be in progress."""
    room, schedule = rooms.collection, rooms.schedule
    if room.round is not None:
        round = room.round
        num_kept = max(round.batch_size, round.num_kept - len(round.quota_leftovers))
        return max(round.size - round.num_begun, num_kept - room.num_live)
    if schedule.has_rounds:
        return 0
    still_needed = (schedule.max_steps - room.ledger.current) * schedule.batch_size
    limit = room.ledger.rules.max_entries or 0
    return min(still_needed, limit - _num_not_replaced(rooms)) - room.num_live


def _num_not_replaced(rooms: Rooms) -> int:
    """Return how many groups have left the ledger but still count against the cap of admission `count`: groups that are
    being trained, and groups whose trained version is not published yet. If they were replaced now, the new groups
    would start with the older version. 0 for other kinds of admission, where the ledger decides."""
    if rooms.schedule.is_strict:
        return 0
    training = rooms.training
    return training.num_waiting_groups + rooms.schedule.batch_size * (training.version - training.published)


def is_used_up(rooms: Rooms) -> bool:
    """Whether the round has started every prompt that may start, and dynamic sampling has filtered so many of them that
    the others, in the long queue or in batches that wait for training, may be the only useful ones."""
    room, schedule = rooms.collection, rooms.schedule
    if room.round is None or not schedule.defers or not schedule.filters_equal_scores or not schedule.epoch_size:
        return False
    num_away = sum(not group.is_live for group in rooms.responses.training_groups())
    return schedule.edition >= TAKES_DEFERRED and room.round.num_begun + num_away >= schedule.epoch_size


def unfinished_prompts(rooms: Rooms) -> set[int]:
    """Return prompts that must not start again yet, because their previous group is unfinished."""
    if not rooms.schedule.defers:
        return set()
    return {group.id.prompt for group in rooms.responses.training_groups()}


def is_within_quota(rooms: Rooms, group: Group) -> bool:
    """Whether a complete group may join the batch. A short round trains each domain in the proportion it launched."""
    room = rooms.collection
    if not rooms.schedule.has_quotas or room.round is None or room.round.is_long or room.round.has_tried_all:
        return True
    live = [g for g in rooms.responses.training_groups() if g.is_live]
    accepted = Counter(g.domain for g in live if g.id in room.complete)
    waiting = Counter(g.domain for g in live if g.id not in room.complete)
    quotas = shares(accepted + waiting + Counter(room.round.quota_leftovers.values()), room.round.batch_size)
    if accepted[group.domain] < quotas[group.domain]:
        return True
    others = sum(count for domain, count in waiting.items() if accepted[domain] < quotas[domain])
    return others < room.round.batch_size - accepted.total()


def shares(launched: Counter[str], total: int) -> dict[str, int]:
    """Divide ``total`` in proportion, by largest remainder; never more of a domain than was launched."""
    exact = {domain: total * count / launched.total() for domain, count in launched.items()}
    result = {domain: int(value) for domain, value in exact.items()}
    by_need = sorted(exact, key=lambda domain: (result[domain] - exact[domain], domain))
    for domain in by_need[: total - sum(result.values())]:
        result[domain] += 1
    return result
