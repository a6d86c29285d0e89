"""How many groups are missing, which prompts start, what closes a group, and when collecting has failed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.histories import started, until
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.collection import facts
from tailrace.core.collection.closing import close_round, defer
from tailrace.core.collection.group_changes import begin
from tailrace.core.collection.relief import relieve
from tailrace.core.collection.room import MAX_RELIEFS, Collection, Streaks
from tailrace.core.collection.rounds import next_round, num_missing
from tailrace.core.collection.rules import abort_surplus, collect
from tailrace.core.ids import GroupId, Version
from tailrace.core.ledger.admission import AdmissionRule
from tailrace.core.ledger.ledger import Ledger
from tailrace.core.outcomes import Part
from tailrace.core.requests import OpenRequest
from tailrace.core.responses.group import Group, GroupPhase
from tailrace.core.responses.response import ResponsePhase
from tailrace.core.rewards.room import Requested
from tailrace.core.rooms import Rooms
from tailrace.core.schedule import EpochEnd, Leftovers, Limits, Schedule
from tailrace.policies.strategies import policies_of

SYNC = Schedule(train_source="train", batch_size=2, group_size=2, max_steps=9)
TAIL = replace(SYNC, leftovers=Leftovers.DEFER, launch_prompts=4)
KEEP = replace(SYNC, leftovers=Leftovers.KEEP, max_staleness=1)


def rooms_of(schedule: Schedule) -> Rooms:
    rooms = Rooms(schedule, policies_of(schedule))
    if schedule.has_rounds:
        rooms.collection.round = next_round(rooms)
    return rooms


def number(prompt: int, epoch: int = 0) -> GroupId:
    return GroupId("train", epoch, prompt)


def score(rooms: Rooms, prompt: int, *scores: float) -> Group:
    """All members of a group that went to an instance get a score, and the group is closed."""
    group = rooms.responses.group(number(prompt))
    group.version = Version(0)
    rooms.collection.group_began(group, Version(0))
    rooms.responses.stop_waiting_for(group.id)
    for member, value in zip(group.members.values(), scores, strict=True):
        member.phase, member.score = ResponsePhase.SCORED, value
    group.num_unsettled = 0
    group.conclude(now=1.0, filters_equal=rooms.schedule.filters_equal_scores)
    facts.close_group(rooms, group, 1.0)
    return group


def offer(rooms: Rooms, *prompts: tuple[int, int], cursor: tuple[int, int] = (0, 9)) -> None:
    event = ev.PromptsOffered(source="train", prompts=prompts, next_epoch=cursor[0], next_offset=cursor[1])
    facts.prompts_offered(rooms, event, 0.0)


@pytest.mark.parametrize(
    ("streaks", "words"),
    [
        (Streaks(num_dropped=1, num_useless=4, num_reliefs=MAX_RELIEFS - 1), None),
        (Streaks(num_dropped=2), "2 groups in a row lost every response to a failing reward; error: no name"),
        (Streaks(num_useless=5), "5 groups in a row had equal scores"),
        (Streaks(num_reliefs=MAX_RELIEFS), f"the trainer waited None s for unfinished groups {MAX_RELIEFS} times"),
    ],
)
def test_collecting_has_failed_after_so_many_failures_in_a_row(streaks: Streaks, words: str | None) -> None:
    schedule = replace(SYNC, max_useless_groups=5)
    room = Collection(ledger=Ledger(schedule.ledger), streaks=streaks)
    found = room.failure(schedule, "error: no name")
    assert found is None if words is None else found is not None and found.startswith(words)


def test_a_complete_group_ends_every_row_but_that_of_reliefs() -> None:
    rooms = rooms_of(replace(SYNC, filters_equal_scores=True))
    for prompt in range(3):
        begin(rooms, number(prompt), "")
    rooms.collection.streaks = Streaks(num_dropped=1, num_useless=3, num_reliefs=2)
    score(rooms, 0, 1.0, 1.0)
    assert rooms.collection.streaks == Streaks(num_dropped=1, num_useless=4, num_reliefs=2)
    assert rooms.collection.unreported == {number(0): GroupPhase.FILTERED}
    assert rooms.collection.num_live == 2
    assert number(0) not in rooms.collection.ledger
    score(rooms, 1, 0.0, 1.0)
    assert rooms.collection.streaks == Streaks(num_reliefs=2)
    assert list(rooms.collection.complete) == [number(1)]
    assert (rooms.collection.filtered_share.num_concluded, rooms.collection.filtered_share.num_filtered) == (2, 1)


def test_prompts_that_were_not_asked_for_or_are_behind_the_cursor_are_refused() -> None:
    rooms = rooms_of(SYNC)
    offer(rooms, (0, 0))
    assert not rooms.responses.groups
    rooms.collection.requested, rooms.collection.cursor = OpenRequest(since=0.0, version=Version(0)), (1, 3)
    for cursor in ((1, 3), (0, 9)):
        offer(rooms, (0, 0), cursor=cursor)
        assert not rooms.responses.groups
    offer(rooms, (1, 3), (1, 4), (1, 5), cursor=(1, 6))
    assert (rooms.collection.cursor, rooms.collection.requested) == ((1, 6), None)
    assert list(rooms.responses.groups) == [number(3, 1), number(4, 1)]
    assert list(rooms.collection.held) == [number(5, 1)], "the round has no room for it"


@pytest.mark.parametrize("schedule", [TAIL, KEEP], ids=["defer", "keep"])
def test_a_prompt_that_comes_twice_waits_for_its_first_visit_only_where_prompts_are_deferred(
    schedule: Schedule,
) -> None:
    rooms = rooms_of(schedule)
    rooms.collection.requested = OpenRequest(since=0.0, version=Version(0))
    offer(rooms, (0, 5), (1, 5), cursor=(1, 1))
    assert list(rooms.collection.held) == ([number(5, 1)] if schedule is TAIL else [])


def test_without_rounds_as_many_groups_are_missing_as_the_bound_admits_and_the_run_still_needs() -> None:
    rooms = rooms_of(KEEP)
    assert num_missing(rooms) == 4, "two batches: one ahead"
    begin(rooms, number(0), "")
    assert num_missing(rooms) == 3
    rooms.collection.ledger.current = 8
    assert num_missing(rooms) == 1, "one batch is left, and one group of it is there"


def test_under_a_cap_groups_that_are_trained_are_not_replaced_before_their_version_is_published() -> None:
    rooms = rooms_of(replace(KEEP, admission=AdmissionRule.COUNT))
    most = num_missing(rooms)
    rooms.training.batches = [(number(0), number(1))]
    assert num_missing(rooms) == most - 2
    rooms.training.batches, rooms.training.version = [], Version(1)
    assert num_missing(rooms) == most - 2
    rooms.training.published = Version(1)
    assert num_missing(rooms) == most


def test_between_rounds_nothing_is_missing() -> None:
    rooms = rooms_of(TAIL)
    assert num_missing(rooms) == 4
    rooms.collection.round = None
    assert num_missing(rooms) == 0


def test_a_round_begins_when_its_version_is_published_and_steps_are_left() -> None:
    rooms = rooms_of(replace(SYNC, rounds_ahead=1, max_staleness=1))
    rooms.collection.ledger.current = 2
    assert next_round(rooms) is None, "version 1 is not published"
    rooms.training.published = Version(1)
    found = next_round(rooms)
    assert found is not None
    assert (found.number, found.version, found.size, found.is_long) == (2, 1, 2, False)
    rooms.collection.ledger.current, rooms.training.published = 9, Version(9)
    assert next_round(rooms) is None, "all nine steps have their batches"


@pytest.mark.parametrize("num_queued", [1, 2])
def test_a_round_is_long_as_soon_as_the_queue_has_a_batch(num_queued: int) -> None:
    rooms = rooms_of(replace(TAIL, launch_responses=3))
    rooms.collection.queue = dict.fromkeys(map(number, range(num_queued)))
    found = next_round(rooms)
    assert found is not None
    assert (found.is_long, found.is_flush) == (num_queued == 2, False)
    assert (found.size, found.num_kept, found.num_members) == ((2, 2, 2) if found.is_long else (4, 4, 3))


@pytest.mark.parametrize(
    ("cursor", "queued", "batch_size"),
    [((0, 6), [], None), ((0, 7), [], 2), ((0, 9), [(0, 0)], 2), ((1, 0), [(0, 0)], 1), ((1, 0), [(1, 0)], None)],
    ids=["a whole round is left", "three are left", "one and one deferred", "one of the last pass", "of this pass"],
)
def test_the_rest_of_a_pass_is_trained_in_long_rounds_where_passes_are_flushed(
    cursor: tuple[int, int], queued: list[tuple[int, int]], batch_size: int | None
) -> None:
    rooms = rooms_of(replace(TAIL, epoch_end=EpochEnd.FLUSH, epoch_size=10))
    rooms.collection.cursor = cursor
    rooms.collection.queue = {GroupId("train", *each): None for each in queued}
    found = next_round(rooms)
    assert found is not None
    assert found.is_flush == found.is_long == (batch_size is not None)
    assert found.batch_size == (batch_size or 2)


def test_a_full_batch_is_collected_and_its_round_closed_with_what_is_left_over() -> None:
    rooms = rooms_of(TAIL)
    for prompt in range(4):
        begin(rooms, number(prompt), "")
    rooms.collection.streaks.num_reliefs = 3
    score(rooms, 0, 0.0, 1.0)
    assert list(collect(rooms, 5.0)) == [], "half a batch"
    score(rooms, 2, 0.0, 1.0)
    again, closed = collect(rooms, 5.0)
    assert again is None, "the other rules have more to do now"
    assert closed == do.CloseRound(
        round=0, is_long=False, accepted=(number(0), number(2)), deferred=(number(1), number(3))
    )
    assert rooms.training.batches == [(number(0), number(2))]
    assert rooms.collection.round is None
    assert not rooms.collection.complete
    assert (rooms.collection.num_live, rooms.collection.streaks.num_reliefs) == (0, 0)
    assert list(rooms.collection.queue) == [number(1), number(3)]
    assert rooms.collection.search.short[4].count == 1


def test_without_rounds_a_batch_is_collected_when_the_trainer_has_none() -> None:
    rooms = rooms_of(KEEP)
    for prompt in range(2):
        begin(rooms, number(prompt), "")
        score(rooms, prompt, 0.0, 1.0)
    rooms.training.batches = [(number(8), number(9))]
    assert list(collect(rooms, 0.0)) == [], "it can still get fresher groups"
    rooms.training.batches = []
    assert list(collect(rooms, 0.0)) == [None]
    assert rooms.training.batches == [(number(0), number(1))]


@pytest.mark.parametrize("is_replacement", [True, False])
def test_a_group_that_started_late_is_deferred_to_the_next_short_round(is_replacement: bool) -> None:
    rooms = rooms_of(TAIL)
    begin(rooms, number(0), "")
    group = rooms.responses.group(number(0))
    group.is_replacement = is_replacement
    members = defer(rooms, group, 0.0)
    assert [member.id.attempt for member in members] == [0, 0]
    assert (list(rooms.collection.late), list(rooms.collection.queue)) == (
        ([number(0)], []) if is_replacement else ([], [number(0)])
    )
    assert not rooms.responses.pending
    assert (rooms.collection.num_live, group.attempt) == (0, 1)


def test_groups_beyond_the_size_of_a_round_replace_others() -> None:
    rooms = rooms_of(SYNC)
    for prompt in range(3):
        begin(rooms, number(prompt), "")
    assert [group.is_replacement for group in rooms.responses.all_groups()] == [False, False, True]


def test_a_round_that_drops_its_leftovers_names_them_and_keeps_none() -> None:
    rooms = rooms_of(replace(TAIL, leftovers=Leftovers.DROP))
    begin(rooms, number(1), "")
    begin(rooms, number(0), "")
    round = rooms.collection.round
    assert round is not None
    [closed] = close_round(rooms, round, (), 0.0)
    assert closed == do.CloseRound(round=0, is_long=False, accepted=(), dropped=(number(0), number(1)))
    assert not rooms.responses.groups
    assert rooms.collection.num_live == 0


def test_prompts_are_awaited_with_a_limit() -> None:
    room, limits = Collection(ledger=Ledger(SYNC.ledger)), Limits(prompts_s=3.0)
    assert list(room.waits(SYNC, limits)) == []
    assert not room.awaits_prompts
    room.requested = OpenRequest(since=4.0, version=Version(0))
    [wait] = room.waits(SYNC, limits)
    assert (wait.what, wait.since, wait.limit_s) == ("prompts of 'train'", 4.0, 3.0)
    assert room.awaits_prompts


def test_who_may_begin_a_group_depends_on_rounds_and_bounds() -> None:
    published = Version(3)
    for schedule, oldest in ((KEEP, 0), (replace(KEEP, max_staleness=None), 3), (replace(SYNC, rounds_ahead=1), 2**62)):
        room = Collection(ledger=Ledger(schedule.ledger))
        assert room.oldest_for_new(schedule, published) == oldest
        assert room.is_open(schedule) == (schedule.leftovers is Leftovers.KEEP)
    unbounded = replace(KEEP, max_staleness=None)
    room = Collection(ledger=Ledger(unbounded.ledger))
    assert room.oldest_for_new(unbounded, Version(0)) == 0
    assert room.oldest_for_new(unbounded, Version(-1)) == 2**62, "nothing is published"


def test_a_relief_comes_after_the_limit_and_all_rules_are_applied_again() -> None:
    world = started(leftovers=Leftovers.KEEP, max_staleness=1, max_stuck_s=18.0)
    rooms = world.coordinator.rooms
    until(world, lambda: rooms.collection.stuck_since is not None)
    since = rooms.collection.stuck_since
    assert since is not None
    assert rooms.collection.relief_at(rooms.schedule) == since + 18.0
    assert list(relieve(rooms, since + 17.9)) == []
    *_, report, again = relieve(rooms, since + 18.0)
    assert isinstance(report, do.ReportDropped)
    assert again is None
    assert rooms.collection.streaks.num_reliefs == 1
    assert rooms.collection.relief_at(rooms.schedule) is None


def test_a_group_that_the_quotas_leave_over_is_dropped_where_leftovers_are() -> None:
    """Two prompts of ``a`` and one of ``b`` were launched for a batch of one: the place is for ``a``."""
    rooms = rooms_of(
        replace(SYNC, batch_size=1, group_size=2, leftovers=Leftovers.DROP, launch_prompts=3, has_quotas=True)
    )
    for prompt, domain in enumerate("aab"):
        begin(rooms, number(prompt), domain)
    score(rooms, 2, 0.0, 1.0)
    assert not rooms.collection.complete
    assert not rooms.responses.has_group(number(2))
    assert rooms.collection.num_live == 2
    assert number(2) not in rooms.collection.ledger


def test_surplus_responses_that_no_worker_has_are_reported_in_their_order() -> None:
    rooms = rooms_of(SYNC)
    begin(rooms, number(0), "")
    begin(rooms, number(1), "")
    members = [*rooms.responses.group(number(1)).members.values(), *rooms.responses.group(number(0)).members.values()]
    rooms.collection.surplus = {member.id: member for member in members}
    [report] = abort_surplus(rooms, 0.0)
    assert report == do.ReportDropped(responses=tuple(sorted(member.id for member in members)))
    assert list(abort_surplus(rooms, 0.0)) == [], "it is reported once"


def test_filtered_and_dropped_groups_are_reported_in_their_order() -> None:
    rooms = rooms_of(SYNC)
    filtered, dropped = GroupPhase.FILTERED, GroupPhase.DROPPED
    rooms.collection.unreported = {number(8): filtered, number(7): dropped, number(4): filtered, number(5): dropped}
    [report] = abort_surplus(rooms, 0.0)
    assert report == do.ReportDropped(filtered=(number(4), number(8)), dropped=(number(5), number(7)))


def test_a_surplus_response_that_is_being_scored_is_named_by_its_abort_alone() -> None:
    rooms = rooms_of(SYNC)
    begin(rooms, number(0), "")
    first, _ = rooms.responses.group(number(0)).members.values()
    first.phase = ResponsePhase.SCORING
    rooms.rewards.requested[Part.FUNCTION] = Requested(scoring={first.id: None})
    rooms.collection.surplus = {first.id: first}
    assert list(abort_surplus(rooms, 0.0)) == [do.AbortScores(responses=(first.id,))]
