"""Whole runs in virtual time whose scores have parts, with the coordinator and the policies of real runs."""

from __future__ import annotations

from functools import cache
from statistics import median

import pytest

from sim.worlds import parted_scenario, small_scenario
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.journal import Entry, decode, encode, replay_all
from tailrace.core.outcomes import Outcome, Part
from tailrace.policies.strategies import policies_of
from tailrace.policies.timeouts.adaptive import is_probe
from tailrace.sim.calibrate import calibrate, predict, step_seconds
from tailrace.sim.fitting.machine_facts import MachineFacts
from tailrace.sim.named_schedule import left_out_lines, scenario_under, schedule_of
from tailrace.sim.observations import Observations
from tailrace.sim.result import SimResult, simulate
from tailrace.sim.scenario import Scenario, ScenarioError

VARIANTS = {
    "adaptive": {"preset": "sync", "reward": {"code_tests": {"timeouts": "adaptive"}}},
    "tail-adaptive": {"preset": "tail-batching", "reward": {"code_tests": {"timeouts": "adaptive"}}},
    "apart": {"preset": "sync", "reward": {"judge": {"placement": "own"}}},
    "late": {"preset": "sync", "reward": {"timing": "barrier"}},
}
FACTOR = 1.5


def scenario(**changes: object) -> Scenario:
    known = {
        "schedule__variants": VARIANTS,
        "engine__num_instances": 4,
        "trainer__devices": 4,
        "trainer__num_replicas": 4,
        "tests__timeouts": "fixed",
        "tests__timeout_factor": FACTOR,
        "tests__min_case_timeout_s": 0.3,
        "tests__timeout_probe_share": 0.1,
    }
    return parted_scenario(**(known | changes))


def journal(name: str, chosen: Scenario | None = None) -> tuple[SimResult, list[Entry]]:
    entries: list[Entry] = []
    return simulate(chosen or scenario(), name, record=entries.append), entries


def repeated(**changes: object) -> Scenario:
    return scenario(lengths__num_prompts=8, schedule__num_steps=16, **changes)


@cache
def adaptive() -> tuple[SimResult, list[Entry]]:
    """Every problem comes several times."""
    return journal("adaptive", repeated())


def scores(entries: list[Entry], part: Part) -> list[ev.Scored]:
    events = [entry.event for entry in entries if isinstance(entry.event, ev.ResponsesScored)]
    return [scored for event in events if event.part is part for scored in event.scores]


def limits(entries: list[Entry]) -> dict[object, do.CaseLimits]:
    asked = [c for entry in entries for c in entry.commands if isinstance(c, do.Score) and c.part is Part.TESTS]
    return {each: limit for command in asked for each, limit in zip(command.responses, command.limits, strict=True)}


@pytest.mark.parametrize("name", ["sync", "adaptive", "tail-adaptive", "apart", "late"])
def test_a_run_whose_scores_have_parts_replays_on_the_coordinator_of_real_runs(name: str) -> None:
    result, entries = journal(name)
    assert result.is_complete
    read_back = [decode(encode(entry)) for entry in entries]
    assert replay_all(read_back, lambda schedule: Coordinator(schedule, policies=policies_of(schedule))) == len(entries)


def test_the_same_seed_gives_the_same_journal_and_another_seed_another() -> None:
    first, again, other = (journal("tail-adaptive", scenario(seed=seed))[1] for seed in (0, 0, 1))
    assert [encode(entry) for entry in first] == [encode(entry) for entry in again]
    assert [encode(entry) for entry in first] != [encode(entry) for entry in other]


def test_every_part_is_asked_for_every_response_and_answers_once() -> None:
    _, entries = journal("tail-adaptive")
    asked: dict[Part, list[object]] = {part: [] for part in Part}
    for entry in entries:
        for command in entry.commands:
            if isinstance(command, do.Score):
                asked[command.part] += command.responses
    assert len({tuple(sorted(found, key=repr)) for found in asked.values()}) == 1
    computed = dict.fromkeys(Part, 0)
    for part in Part:
        answers = scores(entries, part)
        assert sorted((each.response for each in answers), key=repr) == sorted(asked[part], key=repr)
        computed[part] = sum(each.outcome is Outcome.OK for each in answers)
    assert all(computed.values())


def test_limits_follow_from_correct_programs_and_cut_endless_ones() -> None:
    _, entries = adaptive()
    given, cut = limits(entries), [each for each in scores(entries, Part.TESTS) if each.cut_cases]
    early = [each for each in cut if each.cut_cases[0][1] < 30.0]
    assert len(early) > len(cut) / 2, "most endless programs end before the longest limit"
    for each in cut:
        [(case, limit_s)] = each.cut_cases
        assert limit_s == dict(given[each.response].cases).get(case, given[each.response].others_s)
        assert (each.outcome, each.score) == (Outcome.OK, 0.0)
        if is_probe(each.response, 0.1):
            assert limit_s == 30.0
    assert any(is_probe(each.response, 0.1) for each in cut)


def wrongly_cut(chosen: Scenario, entries: list[Entry]) -> int:
    """Correct programs that a limit has cut."""
    costs = chosen.reward.costs(chosen.seed)
    assert costs.programs is not None
    return sum(
        costs.is_solved(each.response) and not costs.programs.is_endless(costs.seed, each.response)
        for each in scores(entries, Part.TESTS)
        if each.cut_cases
    )


@pytest.mark.parametrize(("within", "are_cut"), [(0.2, False), (0.8, True)])
def test_no_correct_program_is_cut_where_their_times_differ_by_less_than_the_factor(
    within: float, are_cut: bool
) -> None:
    chosen = repeated(tests__within=within)
    programs = chosen.reward.costs(0).programs
    assert programs is not None
    assert (programs.most_ratio < FACTOR) != are_cut
    _, entries = journal("adaptive", chosen)
    assert bool(wrongly_cut(chosen, entries)) == are_cut


def test_adaptive_limits_save_the_time_of_endless_programs() -> None:
    fixed, _ = journal("sync", repeated())
    shorter, entries = adaptive()
    assert shorter.figures.seconds_per_step < 0.8 * fixed.figures.seconds_per_step
    assert any(limit.cases for limit in limits(entries).values())
    unending = repeated(tests__endless_share=0.0, tests__within=0.0)
    both = [journal(name, unending)[0].figures.seconds_per_step for name in ("sync", "adaptive")]
    assert both[0] == pytest.approx(both[1], rel=1e-9), "where every program ends, limits change nothing"


def test_a_judge_takes_devices_or_time_from_rollout() -> None:
    chosen = scenario(judge__devices=3, judge__kv_tokens=1000, judge__rollout_slowdown=3.0)
    apart = scenario_under(chosen, "apart")
    assert (chosen.num_instances, chosen.num_replicas, chosen.kv_capacity) == (4, 4, 4000)
    assert (apart.num_instances, apart.num_replicas, apart.kv_capacity) == (1, 1, 5000)
    assert schedule_of(chosen, "apart").num_instances == 1
    assert schedule_of(chosen, "sync").num_instances == 4
    keeps = scenario_under(scenario(judge__devices=2, judge__takes_from_training=False), "apart")
    assert (keeps.num_instances, keeps.num_replicas) == (2, 4)
    costs = chosen.world_costs().reward.judge, apart.world_costs().reward.judge
    assert [each and (each.num_judges, each.rollout_slowdown) for each in costs] == [(2, 3.0), (3, 1.0)]
    assert [each.world_costs().engine.kv_capacity for each in (chosen, apart)] == [4000, 5000]
    undisturbed = journal("sync", scenario(judge__pass_s=2.0))[0].figures
    disturbed = journal("sync", scenario(judge__pass_s=2.0, judge__rollout_slowdown=3.0))[0].figures
    assert disturbed.rollout_tokens_per_s < 0.95 * undisturbed.rollout_tokens_per_s
    assert disturbed.tokens_trained == undisturbed.tokens_trained


def test_rollpacker_brings_its_rewards_to_a_scenario_that_has_others() -> None:
    chosen = scenario(judge__placement="own", judge__devices=2)
    under = scenario_under(chosen, "rollpacker").reward
    assert under.code_tests is not None
    assert under.judge is not None
    assert (under.code_tests.timeouts, under.judge.placement) == ("adaptive", "shared")
    found = schedule_of(chosen, "rollpacker")
    assert (found.case_time.strategy, found.lending.strategy, found.num_instances) == ("adaptive", "kv-peak", 4)
    assert schedule_of(chosen, "tail-batching").num_instances == 2
    assert left_out_lines(chosen, "rollpacker") == [
        "rollpacker: without changes of the parallel size, because the scenario has one parallel size"
    ]
    own = {"preset": "rollpacker", "reward": {"code_tests": {"timeouts": "fixed"}, "judge": {"placement": "own"}}}
    kept = scenario(judge__devices=2, schedule__variants={"own": own})
    assert (schedule_of(kept, "own").case_time.strategy, schedule_of(kept, "own").num_instances) == ("fixed", 2)
    assert "the judge has devices of its own" in left_out_lines(kept, "own")[-1]


def test_rollpacker_without_programs_judges_and_replicas_says_so_and_is_simulated() -> None:
    plain = small_scenario(trainer__num_replicas=1)
    assert [line.partition(",")[0] for line in left_out_lines(plain, "rollpacker")] == [
        f"rollpacker: without {what}"
        for what in (
            "streamed steps",
            "lent instances",
            "changes of the parallel size",
            "adaptive limits of test cases",
            "layers of a judge in host memory",
        )
    ], "the scenario is colocated and has one replica"
    result, entries = journal("rollpacker", plain)
    assert result.is_complete
    assert replay_all(entries, lambda s: Coordinator(s, policies=policies_of(s))) == len(entries)
    assert left_out_lines(plain, "tail-batching") == []


def test_training_takes_longer_where_a_judge_has_its_devices() -> None:
    chosen = scenario(judge__devices=2, trainer__fixed_s=0.0)
    entries = journal("sync", chosen)[1], journal("apart", chosen)[1]
    sums = [sum(each.event.seconds for each in found if isinstance(each.event, ev.StepTrained)) for found in entries]
    assert sums[1] == pytest.approx(2 * sums[0])


def test_more_devices_and_prompts_have_more_workers_of_every_part() -> None:
    twice = scenario(judge__devices=3).scaled(2).reward
    assert twice.code_tests is not None
    assert twice.judge is not None
    assert (twice.num_workers, twice.code_tests.workers, twice.judge.workers, twice.judge.devices) == (6, 80, 4, 6)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"tests__case_timeout": 3},
            "did you mean reward.code_tests.case_timeout_s?",
        ),
        ({"judge__token": 3}, "unknown key reward.judge.token; did you mean reward.judge.token_s?"),
        ({"tests__endless_share": 1.5}, "reward.code_tests.endless_share: input should be less than or equal to 1"),
        ({"tests__source": ""}, "reward.code_tests.source"),
        ({"judge__kv_tokens": 4900}, "engine.kv_capacity is 100 without reward.judge.kv_tokens, but a response"),
        ({"reward__kinds": [], "reward__code_tests": None, "reward__judge": None}, "no prompt has a reward"),
    ],
)
def test_wrong_rewards_are_refused_with_a_sentence(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        scenario(**change)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("reward", "sentence"),
    [
        ({"code_tests": {"timeouts": "adaptive"}}, "schedule 'a': a variant sets reward.code_tests.timeouts, but"),
        ({"judge": {"placement": "own"}}, "schedule 'a': a variant sets reward.judge.placement, but"),
    ],
)
def test_a_variant_changes_only_rewards_that_the_scenario_has(reward: dict[str, object], sentence: str) -> None:
    with pytest.raises(ScenarioError, match=sentence):
        schedule_of(small_scenario(schedule__variants={"a": {"preset": "sync", "reward": reward}}), "a")


def test_a_judge_may_not_take_all_devices() -> None:
    with pytest.raises(ScenarioError, match="they take all 4 rollout instances"):
        schedule_of(scenario(judge__devices=4), "apart")


def test_a_scenario_without_functions_has_no_such_part() -> None:
    chosen = scenario(reward__kinds=[], reward__judge=None)
    assert schedule_of(chosen, "sync").score_parts == (Part.TESTS,)
    assert schedule_of(small_scenario(), "sync").score_parts == (Part.FUNCTION,)
    _, entries = journal("sync", chosen)
    assert {each.outcome for each in scores(entries, Part.TESTS)} == {Outcome.OK}


def test_costs_of_every_part_are_found_again_and_predict_the_run() -> None:
    chosen = scenario(
        schedule__num_steps=12, engine__max_running=8, engine__num_instances=2, tests__workers=2,
        tests__case_timeout_s=5.0, judge__pass_s=0.5, judge__workers=1,
    )  # fmt: skip
    machine = MachineFacts(
        prompt_length=20, max_response_length=500, kv_capacity=5000, max_running=8, num_prompts=100_000,
        num_reward_workers=3, num_test_workers=2, num_judges=1,
    )  # fmt: skip
    _, entries = journal("sync", chosen)
    found = calibrate([entries], machine)
    fitted = {each.part: each for each in found.costs.reward.fitted}
    assert set(fitted) == set(Part)
    assert sum(each.abstain_share for each in fitted.values()) == pytest.approx(2.0), "one part scores each prompt"
    real = {part: [each for each in scores(entries, part) if each.outcome is Outcome.OK] for part in Part}
    tests = [each.seconds for each in real[Part.TESTS]]
    assert fitted[Part.TESTS].kind.median_s == pytest.approx(median(tests))
    passes = {(each.seconds, each.queued_s) for each in real[Part.JUDGE]}
    assert fitted[Part.JUDGE].kind.median_s < median([seconds for seconds, _ in passes])
    assert sum(predict(entries, found)) == pytest.approx(sum(step_seconds(entries)), rel=0.05)


def test_what_is_seen_of_one_part_says_nothing_of_another() -> None:
    _, entries = journal("sync")
    seen = Observations(prompt_length=20)
    for entry in entries:
        seen.feed(entry)
    computed = {part: sum(each.outcome is Outcome.OK for each in scores(entries, part)) for part in Part}
    assert {part: len(each.seconds) for part, each in seen.rewards.items()} == computed
    passes = [
        {each.seconds for each in entry.event.scores if each.outcome is Outcome.OK}
        for entry in entries
        if isinstance(entry.event, ev.ResponsesScored) and entry.event.part is Part.JUDGE
    ]
    assert sum(seen.rewards[Part.JUDGE].seconds) == pytest.approx(sum(sum(each) for each in passes))
