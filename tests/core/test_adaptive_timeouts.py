"""Time limits of test cases that follow from what correct responses took."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.test_rewards import HELDOUT, SIZE, TRAIN, rooms_with_finished
from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.journal import replay_all
from tailrace.core.outcomes import Outcome, Part
from tailrace.core.rewards import facts
from tailrace.core.rewards.case_times import CaseTimes, problem_of
from tailrace.core.rewards.rules import limit_cases, score
from tailrace.core.rooms import Rooms
from tailrace.core.rules import run_resumed
from tailrace.core.schedule import CaseTime, Limits, Schedule
from tailrace.policies.strategies import policies_of
from tailrace.policies.timeouts.adaptive import AdaptiveTimeouts, is_probe

RULES = CaseTime(strategy="adaptive", most_s=30.0, least_s=2.0, factor=1.5, probe_share=0.0)


def rooms_that_score(number: GroupId = TRAIN, **changes: float) -> Rooms:
    rooms = rooms_with_finished(number, case_time=replace(RULES, **changes), score_parts=(Part.TESTS,))
    rooms.rewards.generated.clear()
    return rooms


def limits(rooms: Rooms, *members: int, number: GroupId = TRAIN) -> list[do.CaseLimits]:
    for member in members:
        rooms.rewards.add(ResponseId(number, member))
    [command] = score(rooms, 0.0)
    assert isinstance(command, do.Score)
    return list(command.limits)


def tell(rooms: Rooms, member: int, outcome: Outcome = Outcome.OK, **times: object) -> None:
    scored = ev.Scored(response=ResponseId(TRAIN, member), outcome=outcome, score=0.0, seconds=0.1, **times)
    facts.responses_scored(rooms, ev.ResponsesScored(scores=(scored,), part=Part.TESTS), 1.0)


def test_fixed_timeouts_are_not_sent_because_the_reward_knows_them() -> None:
    rooms = rooms_with_finished(score_parts=(Part.TESTS,))
    [command] = score(rooms, 0.0)
    asked = tuple(ResponseId(TRAIN, member) for member in range(SIZE))
    assert command == do.Score(responses=asked, part=Part.TESTS)
    tell(rooms, 0, is_correct=True, slow_cases=((0, 9.0),))
    assert rooms.rewards.case_times == {}


def test_a_problem_that_nobody_has_solved_has_the_longest_limit() -> None:
    rooms = rooms_that_score()
    assert limits(rooms, 0, 1) == [do.CaseLimits(30.0)] * 2
    tell(rooms, 0, is_correct=False, cut_cases=((0, 30.0),))
    assert limits(rooms, 2) == [do.CaseLimits(30.0)]


def test_a_correct_response_says_how_long_each_case_may_take() -> None:
    rooms = rooms_that_score()
    limits(rooms, 0, 1, 2)
    tell(rooms, 0, is_correct=True, slow_cases=((1, 4.0), (3, 25.0)))
    assert limits(rooms, 3) == [do.CaseLimits(2.0, ((1, 6.0), (3, 30.0)))]
    tell(rooms, 1, is_correct=True, slow_cases=((1, 3.0), (2, 1.4)))
    assert limits(rooms, 4) == [do.CaseLimits(2.0, ((1, 6.0), (2, pytest.approx(2.1)), (3, 30.0)))]


def test_a_solved_problem_keeps_its_limits_in_the_next_pass_over_the_data() -> None:
    assert problem_of(GroupId("train", 0, 7)) == problem_of(GroupId("train", 5, 7))
    assert problem_of(GroupId("train", 0, 7)) != problem_of(GroupId("train", 0, 8))


@pytest.mark.parametrize(
    ("outcome", "times"),
    [
        (Outcome.OK, {"is_correct": False, "cut_cases": ((1, 6.0),)}),
        (Outcome.OK, {"is_correct": False}),
        (Outcome.TIMEOUT, {"is_correct": True, "slow_cases": ((1, 20.0),)}),
    ],
    ids=["cut", "wrong", "the reward failed"],
)
def test_what_is_not_correct_changes_no_limit(outcome: Outcome, times: dict[str, object]) -> None:
    rooms = rooms_that_score()
    limits(rooms, 0, 1)
    tell(rooms, 0, is_correct=True, slow_cases=((1, 4.0),))
    tell(rooms, 1, outcome, **times)
    assert limits(rooms, 2) == [do.CaseLimits(2.0, ((1, 6.0),))]


def test_an_evaluation_has_the_longest_limit_whatever_training_has_seen() -> None:
    rooms = rooms_that_score(HELDOUT)
    rooms.rewards.case_times[problem_of(HELDOUT)] = CaseTimes()
    assert limits(rooms, 0, number=HELDOUT) == [do.CaseLimits(30.0)]


def test_an_evaluation_teaches_nothing() -> None:
    rooms = rooms_that_score(HELDOUT)
    limits(rooms, 0, number=HELDOUT)
    scored = ev.Scored(
        response=ResponseId(HELDOUT, 0),
        outcome=Outcome.OK,
        score=1.0,
        seconds=9.0,
        is_correct=True,
        slow_cases=((0, 9.0),),
    )
    facts.responses_scored(rooms, ev.ResponsesScored(scores=(scored,), part=Part.TESTS), 1.0)
    assert rooms.rewards.case_times == {}


def test_where_most_responses_are_cut_the_limit_is_raised_step_by_step() -> None:
    rooms = rooms_that_score(lift_after=4, lift_share=0.5)
    limits(rooms, *range(20))
    tell(rooms, 0, is_correct=True, slow_cases=((1, 4.0),))
    for member in range(1, 4):
        tell(rooms, member, is_correct=False, cut_cases=((1, 6.0),))
    assert limits(rooms, 20) == [do.CaseLimits(2.0, ((1, 9.0),))], "three of four were cut at 6 s"
    for member in range(4, 7):
        tell(rooms, member, is_correct=False, cut_cases=((1, 9.0),))
    assert limits(rooms, 21) == [do.CaseLimits(2.0, ((1, 9.0),))], "the count begins again"
    tell(rooms, 7, is_correct=False, cut_cases=((1, 9.0),))
    assert limits(rooms, 22) == [do.CaseLimits(2.0, ((1, 13.5),))]


def relimited(rooms: Rooms) -> list[do.Command]:
    return [command for command in limit_cases(rooms, 1.0) if command is not None]


def test_responses_that_wait_get_the_limits_that_are_learned_meanwhile() -> None:
    """In the first pass over the data all responses to a problem are requested before one of them has solved it."""
    rooms = rooms_that_score()
    limits(rooms, 0, 1, 2)
    assert relimited(rooms) == []
    tell(rooms, 0, is_correct=True, slow_cases=((1, 4.0),))
    waiting = (ResponseId(TRAIN, 1), ResponseId(TRAIN, 2))
    assert relimited(rooms) == [do.LimitCases(responses=waiting, limits=do.CaseLimits(2.0, ((1, 6.0),)))]
    assert relimited(rooms) == [], "once"
    tell(rooms, 1, is_correct=True, slow_cases=((1, 3.0),))
    assert relimited(rooms) == [], "no limit has changed"


def test_limits_of_probes_evaluations_and_other_problems_stay() -> None:
    other = GroupId("train", 0, 1)
    for share, number in ((1.0, TRAIN), (0.0, HELDOUT)):
        rooms = rooms_that_score(number, probe_share=share)
        limits(rooms, 0, 1, number=number)
        rooms.rewards.case_times[problem_of(number)] = CaseTimes(anchors={1: 4.0})
        rooms.rewards.relimited[number] = None
        assert relimited(rooms) == []
    rooms = rooms_that_score()
    limits(rooms, 0)
    rooms.rewards.case_times[problem_of(other)] = CaseTimes(anchors={1: 4.0})
    rooms.rewards.relimited[other] = None
    assert relimited(rooms) == []


def test_probes_get_the_longest_limit_and_follow_from_the_id_alone() -> None:
    rooms = rooms_that_score(probe_share=1.0)
    rooms.rewards.case_times[problem_of(TRAIN)] = CaseTimes()
    assert limits(rooms, 0) == [do.CaseLimits(30.0)]
    ids = [
        ResponseId(GroupId("train", epoch, prompt), member)
        for epoch in range(4)
        for prompt in range(250)
        for member in range(8)
    ]
    for share in (0.02, 0.25):
        found = [each for each in ids if is_probe(each, share)]
        assert len(found) / len(ids) == pytest.approx(share, rel=0.2)
        assert len({each.group.prompt for each in found}) > 100, "no problem is left out for long"
        assert len({each.member for each in found}) == 8


def test_only_scores_by_test_cases_count_as_tries() -> None:
    rooms = rooms_with_finished(case_time=RULES, score_parts=(Part.FUNCTION, Part.TESTS))
    list(score(rooms, 0.0))
    for part in (Part.FUNCTION, Part.TESTS):
        scored = ev.Scored(response=ResponseId(TRAIN, 0), outcome=Outcome.OK, score=1.0, seconds=1.0, is_correct=True)
        facts.responses_scored(rooms, ev.ResponsesScored(scores=(scored,), part=part), 1.0)
    assert rooms.rewards.case_times[problem_of(TRAIN)].num_tried == 1


SECONDS = st.floats(0.0, 50.0)
CASES = st.lists(st.tuples(st.integers(0, 3), SECONDS), max_size=4).map(tuple)


@given(
    st.lists(st.tuples(st.booleans(), CASES, CASES), max_size=40),
    st.floats(0.1, 5.0),
    st.floats(5.0, 40.0),
    st.floats(1.0, 4.0),
)
def test_property_9_limits_stay_in_their_bounds_and_anchors_never_fall(
    told: list[tuple[bool, tuple[tuple[int, float], ...], tuple[tuple[int, float], ...]]],
    least_s: float,
    most_s: float,
    factor: float,
) -> None:
    rules = replace(RULES, least_s=least_s, most_s=most_s, factor=factor)
    times = CaseTimes()
    longest: dict[int, float] = {}
    for is_correct, slow, cut in told:
        before = {case: times.limit_of(case, rules) for case in range(4)}
        if is_correct:
            times.learn(slow)
            for case, seconds in slow:
                longest[case] = max(seconds, longest.get(case, 0.0))
        times.note_try(cut, rules)
        assert times.anchors == longest, "only correct responses change an anchor, and never downwards"
        named = dict(times.limits(rules).cases)
        for case in range(4):
            limit = named.get(case, times.limits(rules).others_s)
            assert least_s <= limit <= most_s
            assert limit == times.limit_of(case, rules) >= before[case]
            assert limit >= min(most_s, factor * longest.get(case, 0.0)), "a correct response would pass again"


class Programs(World):
    """A world whose rewards run programs: each case of a problem takes its own time, and some programs never end."""

    def score(self, response: ResponseId) -> ev.Scored:
        given = _limits_of(response, (entry.commands for entry in reversed(self.entries)))
        takes = [(response.group.prompt * 7 + case * 3) % 11 * self.rng.uniform(0.5, 1.0) for case in range(3)]
        is_endless = self.rng.random() < 0.3
        cut = tuple((case, limit) for case, limit in given.items() if is_endless or takes[case] > limit)[:1]
        slow = tuple((case, seconds) for case, seconds in enumerate(takes) if seconds > RULES.slow_s)
        scored = World.score(self, response)
        return replace(scored, is_correct=not cut, slow_cases=() if cut else slow, cut_cases=cut)


def _limits_of(response: ResponseId, entries: Iterable[tuple[do.Command, ...]]) -> dict[int, float]:
    for commands in entries:
        for command in commands:
            if isinstance(command, do.Score | do.LimitCases) and command.limits and response in command.responses:
                every = command.limits
                is_one = isinstance(command, do.LimitCases)
                found = every if is_one else every[command.responses.index(response)]
                return {case: dict(found.cases).get(case, found.others_s) for case in range(3)}
    raise AssertionError(f"{response} was never to be scored")


@pytest.mark.parametrize("seed", range(6))
def test_a_run_that_crashes_keeps_what_it_has_learned_and_can_be_replayed(seed: int) -> None:
    schedule = Schedule(
        train_source="train",
        batch_size=2,
        group_size=3,
        max_steps=8,
        epoch_size=7,
        score_parts=(Part.TESTS,),
        case_time=replace(RULES, least_s=0.5),
    )
    world = Programs(schedule, random.Random(seed), trouble=0.02)
    assert world.run().is_complete
    learned = world.coordinator.rooms.rewards.case_times
    assert any(times.anchors for times in learned.values())
    before = {problem: dict(times.anchors) for problem, times in learned.items()}
    world.crash_and_resume()
    assert {problem: dict(t.anchors) for problem, t in world.coordinator.rooms.rewards.case_times.items()} == before
    count = replay_all(iter(world.entries), lambda first: Coordinator(first, policies=policies_of(first)))
    assert count == len(world.entries)


def test_limits_that_are_changed_when_a_run_is_continued_hold_from_then_on() -> None:
    schedule = Schedule(train_source="train", batch_size=2, group_size=3, max_steps=8, case_time=RULES)
    other = replace(schedule, case_time=replace(RULES, strategy="fixed", most_s=10.0, factor=3.0))
    changed = schedule.continued(other)
    assert changed.case_time == replace(RULES, most_s=10.0, factor=3.0), "the strategy stays"
    times = CaseTimes(anchors={1: 4.0})
    asked = ResponseId(TRAIN, 0)
    assert AdaptiveTimeouts().limits(asked, times, changed.case_time) == do.CaseLimits(2.0, ((1, 10.0),))


@pytest.mark.parametrize(
    ("changes", "is_known"),
    [
        ({}, True),
        ({"least_s": 3.0}, True),
        ({"least_s": 1.0}, False),
        ({"factor": 3.0}, False),
        ({"most_s": 9.0}, True),
    ],
)
def test_what_is_known_of_a_problem_is_forgotten_where_shorter_times_matter_from_now_on(
    changes: dict[str, float], is_known: bool
) -> None:
    """Nobody has told those: a case of which nothing is known would get the shortest limit, which may be too short."""
    rooms = rooms_that_score()
    limits(rooms, 0)
    tell(rooms, 0, slow_cases=((3, 6.0),), is_correct=True)
    schedule = replace(rooms.schedule, case_time=replace(rooms.schedule.case_time, **changes))
    run_resumed(rooms, ev.RunResumed(limits=Limits(), checkpoint=None, schedule=schedule), 1.0)
    assert bool(rooms.rewards.case_times) == is_known
    assert (limits(rooms, 1) == [do.CaseLimits(schedule.case_time.most_s)]) == (not is_known)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"least_s": 40.0}, "least_s must be above 0 and at most most_s"),
        ({"least_s": 0.0}, "least_s must be above 0"),
        ({"factor": 0.9}, "factor and lift_after must be at least 1"),
        ({"probe_share": 1.5}, "shares must be from 0 to 1"),
    ],
)
def test_rules_that_make_no_sense_are_refused(changes: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(RULES, **changes)
