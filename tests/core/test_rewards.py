"""Which scores are taken, when a failed one counts, and after how many in a row the run fails."""

from __future__ import annotations

import pytest

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, InstanceId, ResponseId, Version
from tailrace.core.outcomes import Outcome, Part
from tailrace.core.requests import OpenRequest
from tailrace.core.responses.group import Group, GroupPhase
from tailrace.core.responses.response import Finish, ResponsePhase
from tailrace.core.rewards import facts
from tailrace.core.rewards.room import MIN_FAILURES
from tailrace.core.rewards.rules import score
from tailrace.core.rooms import Rooms
from tailrace.core.run.room import RequestedStop
from tailrace.core.schedule import Schedule
from tailrace.policies.strategies import policies_of

SIZE = 50
TRAIN, HELDOUT = GroupId("train", 0, 0), GroupId("heldout", 0, 0)


def rooms_with_finished(number: GroupId = TRAIN, **changes: object) -> Rooms:
    """A group of fifty responses that are finished and need a score."""
    schedule = Schedule(**{"train_source": "train", "batch_size": 1, "group_size": 2, "max_steps": 3, **changes})
    rooms = Rooms(schedule, policies_of(schedule))
    group = Group(id=number, num_needed=SIZE, version=Version(0), is_training=number is TRAIN)
    group.begin(SIZE)
    for member in group.members.values():
        member.phase, member.finish = ResponsePhase.GENERATED, Finish.STOP
        rooms.rewards.add(member.id)
    rooms.responses.add(group)
    return rooms


def answer(rooms: Rooms, members: range, *, outcome: Outcome, number: GroupId = TRAIN, now: float = 1.0) -> None:
    scores = (
        ev.Scored(response=ResponseId(number, each), outcome=outcome, score=0.5, seconds=0.1, detail="no route")
        for each in members
    )
    facts.responses_scored(rooms, ev.ResponsesScored(scores=tuple(scores)), now)


def failure(rooms: Rooms) -> str | None:
    return rooms.rewards.failure(rooms.schedule)


def test_the_run_fails_after_as_many_failed_rewards_in_a_row_as_cannot_be_chance() -> None:
    rooms = rooms_with_finished()
    list(score(rooms, 0.0))
    answer(rooms, range(MIN_FAILURES - 1), outcome=Outcome.ERROR)
    assert failure(rooms) is None
    answer(rooms, range(MIN_FAILURES - 1, MIN_FAILURES), outcome=Outcome.TIMEOUT)
    assert failure(rooms) == f"the last {MIN_FAILURES} rewards failed, every one of them; timeout: no route"


def test_a_reward_that_succeeds_ends_the_row() -> None:
    rooms = rooms_with_finished()
    list(score(rooms, 0.0))
    answer(rooms, range(10), outcome=Outcome.ERROR)
    answer(rooms, range(10, 11), outcome=Outcome.OK)
    answer(rooms, range(11, 10 + MIN_FAILURES), outcome=Outcome.ERROR)
    assert failure(rooms) is None, "one less than it takes"
    answer(rooms, range(10 + MIN_FAILURES, 11 + MIN_FAILURES), outcome=Outcome.ERROR)
    assert failure(rooms) is not None


def test_failed_rewards_of_an_evaluation_are_named_but_do_not_end_the_run() -> None:
    rooms = rooms_with_finished(HELDOUT)
    list(score(rooms, 0.0))
    answer(rooms, range(SIZE - 1), outcome=Outcome.ERROR, number=HELDOUT)
    assert failure(rooms) is None
    assert rooms.rewards.failure_detail == "error: no route"


def test_a_failed_reward_is_the_score_0_or_drops_the_response() -> None:
    for drops, phase in ((False, ResponsePhase.SCORED), (True, ResponsePhase.DROPPED)):
        rooms = rooms_with_finished(drops_failed_rewards=drops)
        list(score(rooms, 0.0))
        answer(rooms, range(1), outcome=Outcome.ERROR)
        answer(rooms, range(1, 2), outcome=Outcome.OK)
        first, second, *_ = rooms.responses.group(TRAIN).members.values()
        assert (first.phase, first.score, first.outcome) == (phase, 0.0, Outcome.ERROR)
        assert (second.phase, second.score, second.outcome) == (ResponsePhase.SCORED, 0.5, Outcome.OK)
        assert rooms.responses.group(TRAIN).num_unsettled == SIZE - 2


def test_an_evaluation_drops_no_response() -> None:
    rooms = rooms_with_finished(HELDOUT, drops_failed_rewards=True)
    list(score(rooms, 0.0))
    answer(rooms, range(1), outcome=Outcome.ERROR, number=HELDOUT)
    assert rooms.responses.response(ResponseId(HELDOUT, 0)).phase is ResponsePhase.SCORED


def test_a_score_that_is_not_awaited_is_refused_and_the_others_of_its_event_are_taken() -> None:
    rooms = rooms_with_finished()
    list(score(rooms, 0.0))
    answer(rooms, range(2, 3), outcome=Outcome.OK, now=1.0)
    answer(rooms, range(2, 4), outcome=Outcome.OK, now=2.0)
    assert (rooms.run.num_refused, rooms.run.last_refusal) == (1, "a score of train:0:0:2:0, which is not awaited")
    assert len(rooms.rewards.requested[Part.FUNCTION].scoring) == SIZE - 2
    assert rooms.rewards.requested[Part.FUNCTION].heard_at == 2.0
    answer(rooms, range(2, 3), outcome=Outcome.OK, now=3.0)
    assert rooms.rewards.requested[Part.FUNCTION].heard_at == 2.0, "a refused report puts no limit off"


def test_the_answer_to_an_aborted_reward_scores_nothing() -> None:
    rooms = rooms_with_finished()
    list(score(rooms, 0.0))
    first = rooms.responses.response(ResponseId(TRAIN, 0))
    assert list(rooms.rewards.abort([first])) == [do.AbortScores(responses=(first.id,))]
    answer(rooms, range(1), outcome=Outcome.ABORTED)
    assert not rooms.rewards.requested[Part.FUNCTION].aborting
    assert rooms.run.num_refused == rooms.rewards.num_failed_in_a_row == 0
    assert first.outcome is None
    assert list(rooms.rewards.abort([])) == []


def test_a_run_that_is_stopping_neither_requests_nor_takes_scores() -> None:
    rooms = rooms_with_finished()
    list(score(rooms, 0.0))
    rooms.run.stop = RequestedStop(reason="enough", since=1.0)
    answer(rooms, range(1), outcome=Outcome.OK)
    assert len(rooms.rewards.requested[Part.FUNCTION].scoring) == SIZE
    facts.run_resumed(rooms, ev.RunResumed(limits=rooms.run.limits, checkpoint=None), 2.0)
    assert list(score(rooms, 2.0)) == []
    rooms.run.stop = None
    [again] = score(rooms, 3.0)
    assert isinstance(again, do.Score)
    assert len(again.responses) == SIZE, "all of them are requested again"


def test_a_resumed_run_counts_failed_rewards_anew_and_awaits_no_aborted_ones() -> None:
    rooms = rooms_with_finished()
    list(score(rooms, 0.0))
    list(rooms.rewards.abort([rooms.responses.response(ResponseId(TRAIN, 49))]))
    answer(rooms, range(MIN_FAILURES), outcome=Outcome.ERROR)
    assert failure(rooms) is not None
    facts.run_resumed(rooms, ev.RunResumed(limits=rooms.run.limits, checkpoint=None), 2.0)
    assert rooms.rewards.num_failed_in_a_row == 0
    assert not rooms.rewards.requested
    assert len(rooms.rewards.generated) == SIZE - MIN_FAILURES - 1


def test_the_more_responses_a_batch_has_the_more_failed_rewards_may_be_chance() -> None:
    """Two whole batches of them fail a run."""
    rooms = rooms_with_finished(batch_size=3, group_size=6)
    rooms.rewards.num_failed_in_a_row = 35
    assert failure(rooms) is None
    rooms.rewards.num_failed_in_a_row = 36
    assert failure(rooms) == "the last 36 rewards failed, every one of them; "


def test_equal_scores_filter_no_prompt_of_an_evaluation() -> None:
    for number in (TRAIN, HELDOUT):
        rooms = rooms_with_finished(number, filters_equal_scores=True)
        rooms.evaluation.open = {"heldout": 2}
        list(score(rooms, 0.0))
        answer(rooms, range(SIZE), outcome=Outcome.OK, number=number)
        assert rooms.responses.has_group(number) == (number is HELDOUT)
        assert rooms.evaluation.open == {"heldout": 1 if number is HELDOUT else 2}, "prompts that are not done"


def test_a_group_that_was_deferred_with_its_tokens_takes_its_scores_and_stays_deferred() -> None:
    rooms = rooms_with_finished()
    list(score(rooms, 0.0))
    rooms.responses.group(TRAIN).phase = GroupPhase.DEFERRED
    answer(rooms, range(SIZE), outcome=Outcome.OK)
    assert len(rooms.responses.group(TRAIN).scored()) == SIZE
    assert rooms.responses.group(TRAIN).phase is GroupPhase.DEFERRED
    assert not rooms.collection.complete


def test_a_score_of_a_response_that_another_score_made_surplus_changes_nothing() -> None:
    """Two scores of one event: the first completes the group, and the second is no longer needed."""
    rooms = rooms_with_finished()
    group = rooms.responses.group(TRAIN)
    group.num_needed = SIZE - 1
    rooms.collection.ledger.reserve(TRAIN, Version(0))
    list(score(rooms, 0.0))
    answer(rooms, range(SIZE), outcome=Outcome.OK)
    assert list(rooms.collection.complete) == [TRAIN]
    assert len(group.members) == SIZE - 1
    assert not rooms.collection.surplus, "there is nothing left to abort"
    assert rooms.run.num_refused == 0


def test_a_barrier_lasts_while_prompts_are_awaited_or_a_training_response_runs() -> None:
    rooms = rooms_with_finished(is_reward_streamed=False)
    rooms.collection.requested = OpenRequest(since=0.0, version=Version(0))
    assert list(score(rooms, 0.0)) == []
    rooms.collection.requested = None
    other = Group(id=GroupId("train", 0, 1), num_needed=1)
    other.begin(1)
    rooms.responses.groups[other.id] = other
    instance = rooms.fleet.instances[InstanceId(0)]
    instance.running = dict.fromkeys(other.members)
    assert list(score(rooms, 0.0)) == []
    instance.running = {}
    assert len(list(score(rooms, 0.0))) == 1


@pytest.mark.parametrize("number", [TRAIN, HELDOUT])
def test_a_barrier_holds_back_the_rewards_of_training_until_nothing_is_generated(number: GroupId) -> None:
    rooms = rooms_with_finished(number, is_reward_streamed=False)
    other = Group(id=GroupId("train", 0, 1), num_needed=1)
    other.begin(1)
    rooms.responses.add(other)
    assert len(list(score(rooms, 0.0))) == (0 if number is TRAIN else 1), "a training response is queued"
    rooms.responses.remove(other.id)
    assert len(list(score(rooms, 0.0))) == (1 if number is TRAIN else 0)


def test_the_limit_of_rewards_begins_with_the_first_that_is_awaited() -> None:
    rooms = rooms_with_finished()
    late = ResponseId(TRAIN, 1)
    rooms.rewards.remove_generated(late)
    list(score(rooms, 4.0))
    rooms.rewards.add(late)
    list(score(rooms, 6.0))
    [wait] = rooms.rewards.waits(rooms.run.limits)
    assert wait.since == 4.0
