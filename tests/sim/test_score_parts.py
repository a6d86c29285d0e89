"""Parts of scores in virtual time: pools, programs against test cases, judges."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.worlds import I0, Stage, response, submit
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.commands import CaseLimits
from tailrace.core.ids import ResponseId
from tailrace.core.outcomes import Outcome, Part
from tailrace.core.schedule import CaseTime
from tailrace.sim.judge_model import JudgeCosts
from tailrace.sim.program_model import ProgramCosts
from tailrace.sim.reward_model import RewardCosts, RewardKind

PROGRAMS = ProgramCosts(num_workers=2, num_cases=4, median_s=0.5, between=0.8, across=0.4, within=0.2)
JUDGE = JudgeCosts(num_judges=2, pass_s=1.0, token_s=0.01)
MANY = [response(prompt, member) for prompt in range(40) for member in range(4)]


def costs(**changes: object) -> RewardCosts:
    known = {"seed": 0, "num_workers": 2, "kinds": (RewardKind(median_s=4.0),), "programs": PROGRAMS, "judge": JUDGE}
    return RewardCosts(**(known | changes))  # type: ignore[arg-type]


def scored(stage: Stage) -> list[tuple[float, Part, ev.Scored]]:
    return [(at, event.part, each) for at, event in stage.events(ev.ResponsesScored) for each in event.scores]


def of_part(part: Part, chosen: RewardCosts, count: int) -> list[ResponseId]:
    """Responses that this part scores."""
    return [each for each in MANY if chosen.applies(part, each.group)][:count]


def generated(*lengths: int, costs: RewardCosts, responses: Sequence[ResponseId]) -> Stage:
    """A world in which these responses are being generated, so that a judge knows their lengths."""
    dispatches = tuple(do.Dispatch(response=each, start=0) for each in responses)
    return Stage(*lengths, costs=costs).do(do.StartInstance(instance=I0), do.Submit(instance=I0, dispatches=dispatches))


# Pools


Order = tuple[float, bool, Part, list[int]]
orders = st.lists(
    st.tuples(st.floats(0, 3), st.booleans(), st.sampled_from(list(Part)), st.lists(st.integers(0, 30), max_size=9)),
    max_size=20,
)


@given(orders, st.sampled_from([0.0, 0.7]), st.integers(1, 3))
def test_every_score_that_was_asked_for_is_answered_once(order: list[Order], report_s: float, workers: int) -> None:
    endless = replace(PROGRAMS, num_workers=workers, endless_share=0.3)
    chosen = costs(num_workers=workers, report_s=report_s, programs=endless, judge=replace(JUDGE, max_pass_tokens=40))
    stage, asked, now = generated(7, 30, 90, costs=chosen, responses=MANY[:31]), Counter[tuple[Part, ResponseId]](), 0.0
    for after_s, aborts, part, numbers in order:
        now += after_s
        stage.pass_time(now)
        if aborts:
            stage.do(do.AbortScores(responses=tuple(MANY[number] for number in numbers), part=part))
            continue
        new = [each for each in dict.fromkeys(MANY[number] for number in numbers) if not asked[part, each]]
        asked.update((part, each) for each in new)
        if new:
            stage.do(do.Score(responses=tuple(new), part=part))
    answers = scored(stage.pass_time())
    assert Counter((part, each.response) for _, part, each in answers) == asked
    for _, part, each in answers:
        if each.outcome is not Outcome.ABORTED:
            assert (each.outcome is Outcome.ABSTAINED) != chosen.applies(part, each.response.group)


def test_each_prompt_is_scored_by_one_part() -> None:
    chosen, groups = costs(), {each.group for each in MANY}
    parts = [[part for part in chosen.parts if chosen.applies(part, group)] for group in sorted(groups)]
    assert all(len(found) == 1 for found in parts)
    assert {found[0] for found in parts} == set(Part)


def test_a_response_is_solved_or_not_whatever_scores_it() -> None:
    by_function = RewardCosts(seed=0, num_workers=1)
    assert [costs().is_solved(each) for each in MANY] == [by_function.is_solved(each) for each in MANY]
    assert 20 < sum(by_function.is_solved(each) for each in MANY) < 140


def test_a_slow_part_holds_up_no_other() -> None:
    kind = RewardKind(median_s=500.0, timeout_s=1e6)
    chosen = costs(judge=replace(JUDGE, num_judges=1, pass_s=1000.0), kinds=(kind,))
    due = {part: of_part(part, chosen, 1) for part in Part}
    stage = generated(30, costs=chosen, responses=due[Part.JUDGE])
    for part in Part:
        stage.do(do.Score(responses=tuple(due[part]), part=part))
    ends = {part: at for at, part, each in scored(stage.pass_time()) if each.outcome is Outcome.OK}
    assert ends[Part.TESTS] < 60.0
    assert ends[Part.FUNCTION] == 500.0
    assert ends[Part.JUDGE] > 1000.0


def test_a_score_tells_how_long_it_was_queued() -> None:
    chosen = costs(num_workers=1)
    due = of_part(Part.FUNCTION, chosen, 3)
    stage = Stage(costs=chosen).do(do.Score(responses=tuple(due))).pass_time()
    assert [(each.seconds, each.queued_s) for _, _, each in scored(stage)] == [(4.0, 0.0), (4.0, 4.0), (4.0, 8.0)]


# Programs


def run(program: ProgramCosts, each: ResponseId, limits: CaseLimits, *, slow_s: float = math.inf) -> ev.Scored:
    return program.run(0, each, costs().is_solved(each), limits, lambda limit_s: slow_s)


@given(st.sampled_from(MANY), st.floats(0.01, 5.0), st.dictionaries(st.integers(0, 3), st.floats(0.01, 5.0)))
def test_no_case_runs_longer_than_its_limit(each: ResponseId, others_s: float, own: dict[int, float]) -> None:
    limits = CaseLimits(others_s, tuple(sorted(own.items())))
    found = run(replace(PROGRAMS, endless_share=0.4), each, limits)
    assert found.outcome is Outcome.OK
    assert found.seconds <= sum(own.get(case, others_s) for case in range(4)) + 1e-9
    for case, limit_s in found.cut_cases:
        assert limit_s == own.get(case, others_s)
        assert found.seconds >= limit_s
    assert bool(found.score) == found.is_correct
    assert not (found.is_correct and found.cut_cases)


def test_an_endless_program_runs_until_it_is_cut() -> None:
    endless = replace(PROGRAMS, endless_share=1.0)
    for each in MANY:
        found = run(endless, each, CaseLimits(100.0))
        assert (found.score, len(found.cut_cases)) == (0.0, 1)
        assert 100.0 <= found.seconds < 200.0
        assert run(endless, each, CaseLimits(100.0, ((found.cut_cases[0][0], 20.0),))).seconds == pytest.approx(
            found.seconds - 80.0
        )
    assert {run(endless, each, CaseLimits(100.0)).cut_cases[0][0] for each in MANY} == {0, 1, 2, 3}


def test_a_program_that_fails_early_takes_less_than_one_that_fails_late() -> None:
    early, late = replace(PROGRAMS, early_share=1.0), replace(PROGRAMS, early_share=0.0)
    wrong = [each for each in MANY if not costs().is_solved(each)]
    assert wrong
    for each in wrong:
        first, last = run(early, each, CaseLimits(100.0)), run(late, each, CaseLimits(100.0))
        assert first.seconds < last.seconds
        assert (first.score, last.score, first.cut_cases, last.cut_cases) == (0.0, 0.0, (), ())


def test_correct_programs_for_a_problem_differ_by_less_than_stated() -> None:
    alike = {
        each: run(PROGRAMS, each, CaseLimits(1e6), slow_s=0.0).slow_cases for each in MANY if costs().is_solved(each)
    }
    ratios = []
    for each, cases in alike.items():
        assert len(cases) == 4
        for other, others in alike.items():
            if other.group == each.group:
                ratios += [took / more for (_, took), (_, more) in zip(cases, others, strict=True)]
    assert 1.3 < max(ratios) <= PROGRAMS.most_ratio * 1.01  # times are rounded to milliseconds


def test_only_correct_programs_tell_slow_cases_and_only_those_above_the_bound() -> None:
    limits = CaseLimits(1e6)
    for each in MANY:
        all_cases = run(PROGRAMS, each, limits, slow_s=0.0)
        found = run(PROGRAMS, each, limits, slow_s=1.0)
        assert found.slow_cases == tuple(pair for pair in all_cases.slow_cases if pair[1] > 1.0)
        assert bool(all_cases.slow_cases) == found.is_correct == costs().is_solved(each)


def test_a_program_that_ends_with_the_time_of_all_cases_says_nothing_of_a_case() -> None:
    endless = replace(PROGRAMS, endless_share=1.0, total_s=5.0, start_s=0.25)
    for each in MANY:
        found = run(endless, each, CaseLimits(100.0))
        assert (found.seconds, found.cut_cases) == (5.25, ())


@pytest.mark.parametrize("strategy", ["fixed", "adaptive"])
def test_times_are_told_only_where_a_limit_may_follow_from_them(strategy: str) -> None:
    time = CaseTime(strategy=strategy, most_s=30.0, least_s=0.5, factor=1.5)
    chosen = costs(programs=replace(PROGRAMS, num_workers=200, endless_share=0.2))
    due = of_part(Part.TESTS, chosen, 200)
    stage = Stage(costs=chosen, case_time=time).do(do.Score(responses=tuple(due), part=Part.TESTS)).pass_time()
    slow = [pair for _, _, each in scored(stage) for pair in each.slow_cases]
    cut = [pair for _, _, each in scored(stage) for pair in each.cut_cases]
    assert bool(slow) == (strategy == "adaptive")
    assert all(seconds > time.slow_s for _, seconds in slow)
    assert cut
    assert all(limit_s == 30.0 for _, limit_s in cut)


# Judges


def test_a_judge_computes_what_waits_together() -> None:
    chosen = costs(judge=replace(JUDGE, num_judges=1, copy_s=0.0))
    due = of_part(Part.JUDGE, chosen, 4)
    stage = generated(30, costs=chosen, responses=due)
    stage.do(do.Score(responses=tuple(due[:1]), part=Part.JUDGE))
    stage.do(do.Score(responses=tuple(due[1:]), part=Part.JUDGE)).pass_time()
    found = [(at, each.seconds, each.queued_s) for at, _, each in scored(stage)]
    one, three = 1.0 + 0.01 * 40, 1.0 + 0.01 * 3 * 40  # 30 tokens and 10 of the prompt
    assert found == [pytest.approx((one, one, 0.0)), *[pytest.approx((one + three, three, one))] * 3]


def test_a_pass_holds_only_so_many_tokens_and_free_judges_share_what_waits() -> None:
    def ends(num_judges: int, max_pass_tokens: int, **more: float) -> Counter[float]:
        judge = replace(JUDGE, num_judges=num_judges, max_pass_tokens=max_pass_tokens, token_s=0.0)
        chosen = costs(judge=replace(judge, **more))  # type: ignore[arg-type]
        due = of_part(Part.JUDGE, chosen, 6)
        stage = generated(30, costs=chosen, responses=due)
        stage.do(do.Score(responses=tuple(due), part=Part.JUDGE)).pass_time()
        return Counter(at for at, _, _ in scored(stage))

    assert ends(1, 1000) == {1.0: 6}
    assert ends(1, 80) == {1.0: 2, 2.0: 2, 3.0: 2}
    assert ends(1, 5) == {float(second): 1 for second in range(1, 7)}
    assert ends(3, 80) == {1.0: 6}
    assert ends(3, 1000, response_s=1.0) == {3.0: 6}
    assert ends(4, 1000, response_s=1.0) == {2.0: 2, 3.0: 4}


def test_copied_layers_are_the_least_that_a_pass_takes() -> None:
    judge = replace(JUDGE, pass_s=0.5, copy_s=2.0, response_s=0.1)
    assert judge.pass_seconds(1, 10) == 2.0
    assert judge.pass_seconds(5, 1000) == 0.5 + 0.5 + 10.0


def test_a_judge_on_the_devices_of_rollout_slows_it_down_while_it_computes() -> None:
    def ends_at(judge: JudgeCosts) -> tuple[float, float]:
        """When a response of 90 tokens ends, and when one of 5 tokens is scored at the 10th second."""
        chosen = costs(judge=judge, kinds=(), programs=None)
        stage = Stage(90, 5, costs=chosen).do(do.StartInstance(instance=I0), submit(0, 1)).pass_time(10.0)
        stage.do(do.Score(responses=(response(1),), part=Part.JUDGE)).pass_time()
        ends = {each.response: at for at, report in stage.events(ev.RolloutReported) for each in report.finished}
        [(scored_at, *_)] = scored(stage)
        return ends[response(0)], scored_at

    slow = replace(JUDGE, num_judges=1, pass_s=8.0, token_s=0.0)
    assert ends_at(slow) == (90.0, 18.0)
    assert ends_at(replace(slow, rollout_slowdown=2.0)) == (94.0, 18.0)
    assert ends_at(replace(slow, num_judges=2, rollout_slowdown=2.0, pass_s=15.0)) == (95.0, 25.0)
    assert ends_at(replace(slow, slowdown=1.5)) == (90.0, 22.0)


def test_a_pass_whose_responses_are_aborted_is_computed_to_its_end() -> None:
    chosen = costs(judge=replace(JUDGE, num_judges=1, pass_s=10.0, token_s=0.0))
    first, second = of_part(Part.JUDGE, chosen, 2)
    stage = generated(30, costs=chosen, responses=[first, second])
    stage.do(do.Score(responses=(first,), part=Part.JUDGE)).pass_time(4.0)
    stage.do(do.AbortScores(responses=(first,), part=Part.JUDGE), do.Score(responses=(second,), part=Part.JUDGE))
    answers = [(at, each.response, each.outcome) for at, _, each in scored(stage.pass_time())]
    assert answers == [(4.0, first, Outcome.ABORTED), (20.0, second, Outcome.OK)]
