"""Which groups a round takes over, which of them keep their tokens, and what is reported about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.core import commands as do
from tailrace.core.collection.rounds import next_round
from tailrace.core.collection.rules import open_round, request_prompts
from tailrace.core.ids import GroupId, ResponseId, Version
from tailrace.core.ledger.ledger import Ledger
from tailrace.core.responses.group import Group, GroupPhase
from tailrace.core.responses.response import ResponsePhase
from tailrace.core.rooms import Rooms
from tailrace.core.schedule import Leftovers, Schedule
from tailrace.policies.strategies import policies_of

FRESH, OLD, NEW = (GroupId("train", 0, prompt) for prompt in range(3))
SCHEDULE = Schedule(
    train_source="train",
    batch_size=2,
    group_size=2,
    max_steps=9,
    launch_prompts=5,
    leftovers=Leftovers.DEFER,
    keep_deferred_tokens=True,
    max_staleness=1,
    rounds_ahead=1,
)


def rooms_at_version_5(schedule: Schedule = SCHEDULE) -> Rooms:
    rooms = Rooms(schedule, policies_of(schedule))
    rooms.training.version = rooms.training.published = Version(5)
    rooms.collection.ledger = Ledger(schedule.ledger, current=5)
    return rooms


def add(rooms: Rooms, number: GroupId, *, version: int | None, phase: GroupPhase = GroupPhase.DEFERRED) -> Group:
    """A group of two responses; if it has a version, it has tokens of it."""
    group = Group(id=number, num_needed=2, version=None if version is None else Version(version), phase=phase)
    group.begin(2)
    if version is not None:
        for member in group.members.values():
            member.grow(3, Version(version))
    rooms.responses.add(group)
    if phase is GroupPhase.DEFERRED:
        rooms.collection.late[number] = None
    else:
        rooms.collection.num_live += 1
    return group


def add_deferred(rooms: Rooms) -> None:
    """One group with tokens that are fresh enough, one with tokens that are too old, one without tokens."""
    for number, version in ((FRESH, 4), (OLD, 3), (NEW, None)):
        add(rooms, number, version=version)


def lengths(rooms: Rooms, number: GroupId) -> dict[ResponseId, int]:
    return {member.id: member.length for member in rooms.responses.group(number).members.values()}


def attempt(number: GroupId, count: int, length: int) -> dict[ResponseId, int]:
    return {ResponseId(number, member, count): length for member in range(2)}


def test_a_round_says_which_groups_go_on_and_which_begin_again() -> None:
    rooms = rooms_at_version_5()
    add_deferred(rooms)
    [opened, again] = open_round(rooms, 0.0)
    assert isinstance(opened, do.OpenRound)
    assert (opened.resumed, opened.restarted) == ((FRESH,), (OLD, NEW))
    assert again is None, "the other rules have more to do now"
    assert lengths(rooms, FRESH) == attempt(FRESH, 0, 3)
    assert lengths(rooms, OLD) == attempt(OLD, 1, 0), "its tokens were too old"
    assert lengths(rooms, NEW) == attempt(NEW, 0, 0)


def test_a_round_goes_on_with_the_begun_groups_of_the_last_one_and_not_with_the_others() -> None:
    schedule = replace(SCHEDULE, leftovers=Leftovers.RESUME, keep_deferred_tokens=False, max_staleness=None)
    rooms = rooms_at_version_5(schedule)
    add(rooms, FRESH, version=4, phase=GroupPhase.OPEN)
    add(rooms, NEW, version=None, phase=GroupPhase.OPEN)
    opened = next(open_round(rooms, 0.0))
    assert isinstance(opened, do.OpenRound)
    assert (opened.resumed, opened.restarted) == ((FRESH,), ())
    assert rooms.collection.round is not None
    assert rooms.collection.round.num_begun == 2, "both are in the round all the same"


def test_a_group_that_joins_a_round_later_is_reported_only_if_its_tokens_are_lost() -> None:
    rooms = rooms_at_version_5()
    rooms.collection.round = next_round(rooms)
    add_deferred(rooms)
    steps = list(request_prompts(rooms, 0.0))
    reports = [step for step in steps if isinstance(step, do.ReportDropped)]
    assert reports == [do.ReportDropped(restarted=(OLD,))]
    assert not rooms.collection.late
    assert do.RequestPrompts(source="train", epoch=0, offset=0, count=2) in steps, "two of five are still missing"


def test_all_rules_are_applied_again_when_a_group_joins_a_round_later() -> None:
    """It may be complete at once, so that the batch is full."""
    rooms = rooms_at_version_5()
    rooms.collection.round = next_round(rooms)
    group = add(rooms, FRESH, version=5)
    for score, member in enumerate(group.members.values()):
        member.phase, member.score = ResponsePhase.SCORED, float(score)
    group.num_unsettled = 0
    assert None in list(request_prompts(rooms, 0.0))
    assert group.phase is GroupPhase.COMPLETE
    assert list(rooms.collection.complete) == [FRESH]


def test_all_rules_are_applied_again_when_a_held_prompt_starts() -> None:
    rooms = rooms_at_version_5()
    rooms.collection.round = next_round(rooms)
    rooms.collection.held = {NEW: "", FRESH: ""}
    steps = list(request_prompts(rooms, 0.0))
    assert steps[:2] == [None, None]
    assert list(rooms.responses.groups) == [NEW, FRESH]


def test_a_round_that_has_tried_all_prompts_says_so_before_it_goes_through_them_again() -> None:
    """Then the rules look first for deferred groups that it may take."""
    rooms = rooms_at_version_5(replace(SCHEDULE, filters_equal_scores=True, epoch_size=3))
    rooms.collection.round = round = next_round(rooms)
    assert round is not None
    round.num_begun = 3
    assert list(request_prompts(rooms, 0.0)) == [None]
    assert round.has_tried_all
    [request] = request_prompts(rooms, 0.0)
    assert isinstance(request, do.RequestPrompts)


def test_prompts_are_requested_while_a_batch_waits_for_training_unless_all_of_them_were_tried() -> None:
    rooms = rooms_at_version_5(replace(SCHEDULE, filters_equal_scores=True, epoch_size=3))
    rooms.collection.round = round = next_round(rooms)
    assert round is not None
    rooms.training.batches = [(FRESH, OLD)]
    assert any(isinstance(step, do.RequestPrompts) for step in request_prompts(rooms, 0.0))
    rooms.collection.requested = None
    round.num_begun, round.has_tried_all = 3, True
    assert list(request_prompts(rooms, 0.0)) == [], "only the step can free the others"


@pytest.mark.parametrize(("num_queued", "epoch_size"), [(1, 1), (1, 2), (2, 2), (2, 3), (2, 0)])
def test_no_prompts_are_requested_while_all_of_the_data_set_are_unfinished(num_queued: int, epoch_size: int) -> None:
    """They would all be held back. If the size of the data set is not known, there may be others."""
    rooms = rooms_at_version_5(replace(SCHEDULE, epoch_size=epoch_size))
    rooms.collection.round = next_round(rooms)
    for number in (OLD, NEW)[:num_queued]:
        add(rooms, number, version=None)
    rooms.collection.queue, rooms.collection.late = rooms.collection.late, {}
    assert len(list(request_prompts(rooms, 0.0))) == (0 if num_queued == epoch_size else 1)


def test_no_prompts_are_requested_while_a_request_is_open_or_nothing_is_missing() -> None:
    rooms = rooms_at_version_5()
    assert list(request_prompts(rooms, 0.0)) == [], "there is no round"
    rooms.collection.round = next_round(rooms)
    [request] = request_prompts(rooms, 7.0)
    assert request == do.RequestPrompts(source="train", epoch=0, offset=0, count=5)
    [wait] = rooms.collection.waits(rooms.schedule, rooms.run.limits)
    assert wait.since == 7.0
    assert list(request_prompts(rooms, 8.0)) == []
