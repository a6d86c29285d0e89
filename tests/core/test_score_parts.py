"""A score in several parts: each is asked for, awaited, aborted and limited by itself; together they make the score."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from core.test_rewards import SIZE, TRAIN, rooms_with_finished
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import ResponseId
from tailrace.core.outcomes import Outcome, Part
from tailrace.core.responses.part_score import PartScore, combined
from tailrace.core.responses.response import ResponsePhase
from tailrace.core.rewards import facts
from tailrace.core.rewards.room import Rewards
from tailrace.core.rewards.rules import score
from tailrace.core.rooms import Rooms
from tailrace.core.schedule import Limits

EVERY = tuple(Part)
FIRST = ResponseId(TRAIN, 0)


def asked_rooms(**changes: object) -> Rooms:
    rooms = rooms_with_finished(score_parts=EVERY, **changes)
    list(score(rooms, 0.0))
    return rooms


def tell(rooms: Rooms, part: Part, outcome: Outcome = Outcome.OK, value: float = 1.0, now: float = 1.0) -> None:
    scored = ev.Scored(response=FIRST, outcome=outcome, score=value, seconds=0.1, detail=f"{part.value} it was")
    facts.responses_scored(rooms, ev.ResponsesScored(scores=(scored,), part=part), now)


def test_each_part_is_asked_for_with_a_command_of_its_own() -> None:
    rooms = rooms_with_finished(score_parts=(Part.FUNCTION, Part.JUDGE))
    commands = list(score(rooms, 0.0))
    assert [command.part for command in commands if isinstance(command, do.Score)] == [Part.FUNCTION, Part.JUDGE]
    assert all(len(command.responses) == SIZE for command in commands if isinstance(command, do.Score))


@pytest.mark.parametrize("order", list(itertools.permutations(EVERY)))
def test_a_response_has_a_score_when_it_has_all_parts_in_any_order(order: tuple[Part, ...]) -> None:
    rooms, values = asked_rooms(), {Part.FUNCTION: 0.1, Part.TESTS: 0.2, Part.JUDGE: 0.3}
    response = rooms.responses.response(FIRST)
    for part in order[:-1]:
        tell(rooms, part, value=values[part])
        assert response.phase is ResponsePhase.SCORING
    tell(rooms, order[-1], value=values[order[-1]])
    assert (response.phase, response.outcome) == (ResponsePhase.SCORED, Outcome.OK)
    assert response.score == 0.1 + 0.2 + 0.3, "the same bits in every order"


def test_a_part_that_abstains_leaves_the_score_to_the_others() -> None:
    rooms = asked_rooms()
    for part in EVERY:
        tell(rooms, part, Outcome.ABSTAINED if part is Part.TESTS else Outcome.OK, 0.5)
    response = rooms.responses.response(FIRST)
    assert (response.outcome, response.score) == (Outcome.OK, 1.0)
    assert rooms.rewards.num_failed_in_a_row == 0


def test_a_score_of_which_every_part_abstains_is_invalid() -> None:
    rooms = asked_rooms()
    for part in EVERY:
        tell(rooms, part, Outcome.ABSTAINED)
    assert rooms.responses.response(FIRST).outcome is Outcome.INVALID
    assert rooms.rewards.failure_detail == "invalid: no reward function applies to this response"
    assert rooms.rewards.num_failed_in_a_row == 1


@pytest.mark.parametrize("failed", [Outcome.TIMEOUT, Outcome.ERROR, Outcome.CRASH, Outcome.INVALID])
def test_a_part_that_fails_decides_the_outcome_and_counts_once(failed: Outcome) -> None:
    rooms = asked_rooms()
    tell(rooms, Part.TESTS, failed)
    assert rooms.rewards.num_failed_in_a_row == 0, "the response has no score yet"
    tell(rooms, Part.FUNCTION)
    tell(rooms, Part.JUDGE, Outcome.CRASH)
    response = rooms.responses.response(FIRST)
    assert (response.outcome, response.score) == (failed, 0.0), "that of the first part that failed"
    assert rooms.rewards.num_failed_in_a_row == 1


def test_a_part_that_was_not_awaited_is_refused() -> None:
    rooms = asked_rooms()
    tell(rooms, Part.JUDGE)
    before = rooms.run.num_refused
    tell(rooms, Part.JUDGE)
    assert rooms.run.num_refused == before + 1
    assert len(rooms.responses.response(FIRST).part_scores) == 1


def test_an_abort_names_only_the_parts_that_are_still_missing() -> None:
    rooms = asked_rooms()
    tell(rooms, Part.TESTS)
    commands = list(rooms.rewards.abort([rooms.responses.response(FIRST)]))
    assert commands == [
        do.AbortScores(responses=(FIRST,), part=Part.FUNCTION),
        do.AbortScores(responses=(FIRST,), part=Part.JUDGE),
    ]


def test_each_part_is_waited_for_by_itself_and_has_its_own_limit() -> None:
    rooms = asked_rooms()
    limits = Limits(reward_s=10.0, tests_s=20.0, judge_s=30.0)
    tell(rooms, Part.JUDGE, now=7.0)
    waits = [(wait.what.split(" of ")[0], wait.since, wait.limit_s) for wait in rooms.rewards.waits(limits)]
    assert waits == [("reward", 0.0, 10.0), ("test results", 0.0, 20.0), ("score by the judge", 7.0, 30.0)]
    assert [wait.limit_s for wait in rooms.rewards.waits(Limits(reward_s=10.0))] == [10.0] * 3, "unless it has none"


def test_parts_that_came_before_a_crash_are_not_asked_for_again() -> None:
    rooms = asked_rooms()
    tell(rooms, Part.JUDGE)
    facts.run_resumed(rooms, ev.RunResumed(limits=Limits(), checkpoint=None), 2.0)
    asked = {command.part: command.responses for command in score(rooms, 3.0) if isinstance(command, do.Score)}
    assert {part for part, responses in asked.items() if FIRST in responses} == {Part.FUNCTION, Part.TESTS}
    assert len(asked[Part.JUDGE]) == SIZE - 1


def test_what_was_stored_when_scores_had_one_part_is_read() -> None:
    stored: dict[str, object] = {"generated": {}, "scoring": {"a": None}, "aborting": {}, "heard_at": 2.0}
    assert Rewards.upgraded(stored) == {
        "generated": {},
        "requested": {"function": {"scoring": {"a": None}, "aborting": {}, "heard_at": 2.0}},
    }
    assert Rewards.upgraded({"requested": {}}) == {"requested": {}}


def test_an_aborted_part_makes_the_whole_aborted() -> None:
    parts = [PartScore(Part.FUNCTION, Outcome.OK, 1.0), PartScore(Part.JUDGE, Outcome.ABORTED, 0.0)]
    assert combined(parts) == (Outcome.ABORTED, 0.0)
    assert combined([replace_outcome(part) for part in parts]) == (Outcome.OK, 1.0)


def replace_outcome(part: PartScore) -> PartScore:
    return part._replace(outcome=Outcome.OK)


def continued(rooms: Rooms, *parts: Part) -> dict[Part, tuple[ResponseId, ...]]:
    """The run is continued, and scores have these parts from now on. Return what is asked for."""
    rooms.schedule = rooms.schedule.continued(replace(rooms.schedule, score_parts=parts))
    facts.run_resumed(rooms, ev.RunResumed(limits=Limits(), checkpoint=None), 2.0)
    return {command.part: command.responses for command in score(rooms, 3.0) if isinstance(command, do.Score)}


def test_a_continued_run_does_not_wait_for_a_part_that_it_no_longer_has() -> None:
    rooms = rooms_with_finished(score_parts=(Part.FUNCTION, Part.TESTS))
    list(score(rooms, 0.0))
    tell(rooms, Part.FUNCTION, value=0.25)
    asked = continued(rooms, Part.FUNCTION)
    response = rooms.responses.response(FIRST)
    assert (response.phase, response.score, response.part_scores) == (ResponsePhase.SCORED, 0.25, ())
    assert set(asked) == {Part.FUNCTION}
    assert len(asked[Part.FUNCTION]) == SIZE - 1


def test_what_came_of_a_part_that_a_continued_run_no_longer_has_does_not_count() -> None:
    rooms = rooms_with_finished(score_parts=(Part.FUNCTION, Part.TESTS))
    list(score(rooms, 0.0))
    tell(rooms, Part.TESTS, Outcome.CRASH)
    asked = continued(rooms, Part.FUNCTION)
    assert len(asked[Part.FUNCTION]) == SIZE
    tell(rooms, Part.FUNCTION, value=0.5)
    assert rooms.responses.response(FIRST).score == 0.5


def test_a_continued_run_asks_for_a_part_that_it_did_not_have() -> None:
    rooms = rooms_with_finished(score_parts=(Part.FUNCTION, Part.TESTS))
    list(score(rooms, 0.0))
    tell(rooms, Part.FUNCTION)
    asked = continued(rooms, *EVERY)
    assert FIRST in asked[Part.TESTS]
    assert FIRST in asked[Part.JUDGE]
    assert FIRST not in asked[Part.FUNCTION]
