from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.cluster.clusters import SMALL, small
from tailrace.cluster.settings import Grain, Policy
from tailrace.sim.cluster.scenario_file import check_cluster, is_cluster_scenario, load_cluster_scenario
from tailrace.sim.scenario import ScenarioError

SCENARIOS = Path(__file__).parents[3] / "scenarios"
FILES = sorted(SCENARIOS.glob("cluster_*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_cluster_scenario_is_sound_and_names_its_sources(path: Path) -> None:
    scenario = load_cluster_scenario(path)
    assert scenario.name == path.stem
    assert is_cluster_scenario(path)
    assert all(each.source for each in (scenario, scenario.cluster, scenario.rules, scenario.jobs, *scenario.models))


def test_the_scenarios_of_the_paper_share_their_models_and_bandwidths() -> None:
    others = ("cluster_own_runs", "cluster_state_parts")
    loaded = [load_cluster_scenario(path) for path in FILES if path.stem not in others]
    assert len(loaded) == 4
    assert all(scenario.models == loaded[0].models for scenario in loaded)
    assert len({(s.cluster.transfer_gb_per_s, s.cluster.disk_gb_per_s, s.jobs.jitter) for s in loaded}) == 1


def test_the_scenario_of_parts_has_the_30b_of_the_others_with_its_state_divided() -> None:
    [whole] = [each for each in load_cluster_scenario(SCENARIOS / "cluster_two_jobs.toml").models if each.name == "30B"]
    scenario = load_cluster_scenario(SCENARIOS / "cluster_state_parts.toml")
    own = {"name", "source", "gradients_gb", "optimizer_gb", "lazy_state", "host_step_s"}
    for model in scenario.models:
        assert model.model_dump(exclude=own) == whole.model_dump(exclude=own)
        assert model.gradients_gb + model.optimizer_gb == whole.optimizer_gb
    assert scenario.cluster.transfer_gb_per_s == 51.4


def test_a_switch_of_30b_takes_19_seconds() -> None:
    scenario = load_cluster_scenario(SCENARIOS / "cluster_backlog.toml")
    [model] = [model for model in scenario.models if model.name == "30B"]
    total = model.weights_gb + model.optimizer_gb
    assert 2 * total / scenario.cluster.transfer_gb_per_s == pytest.approx(19.0, rel=0.001)


@pytest.mark.parametrize("overlap", ["serial", "one-step"])
def test_a_step_of_a_lone_job_is_the_cycle_of_the_paper(overlap: str) -> None:
    scenario = load_cluster_scenario(SCENARIOS / "cluster_backlog.toml").with_jobs(overlap=overlap)
    setup = scenario.with_jobs(count=10).setup("isolated")
    bubbles = {plan.model: 1 - plan.spec.trace.duty for plan in setup.plans if plan.spec.trace is not None}
    assert bubbles == pytest.approx({"7B": 0.8010, "30B": 0.7067, "235B": 0.8111}, abs=1e-4)  # Table 2


def test_devices_are_divided_by_work_and_never_exceeded() -> None:
    scenario = load_cluster_scenario(SCENARIOS / "cluster_backlog.toml")
    isolated = scenario.partition_of(scenario.rules_of("isolated"))
    assert isolated.groups == {"7B": 21, "30B": 2, "235B": 2}
    shared = scenario.partition_of(scenario.rules_of("spread"))
    assert shared.jobs_per_group == {"7B": 3, "30B": 2, "235B": 3}  # three of 30B would exceed a duty of 0.8
    for partition in (isolated, shared):
        assert partition.devices <= 2048


def wrong(section: str, **changes: Any) -> str:
    data = SMALL | {section: {**SMALL[section], **changes}} if section in SMALL else SMALL | changes
    with pytest.raises(ScenarioError) as caught:
        check_cluster(data, Path("x.toml"))
    return str(caught.value)


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        ("cluster", {"total_device": 8}, "unknown key cluster.total_device; did you mean cluster.total_devices?"),
        ("rules", {"max_duti": 1.0}, "unknown key rules.max_duti; did you mean rules.max_duty?"),
        ("", {"models": [SMALL["models"][0] | {"sync": 1.0}]}, "did you mean models.sync_s?"),
        ("", {"faults": [{"kind": "node", "at": 1, "nod": "a"}]}, "did you mean faults.node?"),
        ("rules", {"variants": {"mine": {"grian": "phase"}}}, "did you mean rules.variants.grain?"),
        ("rules", {"compare": ["spred"]}, "there are no rules 'spred'; known are isolated, pack, spread"),
        ("jobs", {"mix": {"b": 1}}, "jobs.mix names 'b', but the models are a"),
        ("cluster", {"total_devices": 100}, "either total_devices or groups"),
        ("cluster", {"total_devices": 10, "groups": {}}, "one node group of each model needs"),
        ("jobs", {"arrivals": "poisson"}, "either load or rate_per_hour"),
        ("jobs", {"min_steps": 9}, "max_steps is 3, below min_steps"),
        ("", {"faults": [{"kind": "crash", "at": 1, "job": 5}]}, "a fault names job 5, but the last one is 0"),
        ("", {"faults": [{"kind": "node", "at": 1, "node": "a-1/0"}]}, "a fault names node 'a-1/0'"),
        ("", {"models": [SMALL["models"][0] | {"sync_s": None}]}, "needs cycle_s, logprob_s, update_s and sync_s"),
        ("", {"models": [SMALL["models"][0] | {"trace": "no.json"}]}, "cannot read steps from no.json"),
        ("", {"rule": {}}, "unknown key rule; did you mean rules?"),
        ("", {"models": [SMALL["models"][0] | {"cycle_s": 40.0}]}, "which take 40 s and leave no time for rollout"),
        ("rules", {"max_duty": float("inf")}, "rules.max_duty: input should be a finite number, got inf"),
    ],
)
def test_a_wrong_scenario_is_refused_with_a_hint(section: str, changes: dict[str, Any], message: str) -> None:
    assert message in wrong(section, **changes)


def test_a_cycle_is_not_shorter_than_its_operations_even_if_rollout_goes_on_meanwhile() -> None:
    assert small(jobs={"overlap": "one-step"}, models={"cycle_s": 40.0}).plans()
    with pytest.raises(ScenarioError, match=r"model a: a cycle of 39\.9 s is too short for its operations.* 40 s"):
        small(jobs={"overlap": "one-step"}, models={"cycle_s": 39.9})


def test_rules_are_those_of_the_section_with_the_changes_of_a_variant() -> None:
    scenario = small(rules={"max_duty": 0.5, "policy": "pack", "variants": {"mine": {"grain": "operation"}}})
    mine = scenario.rules_of("mine")
    assert (mine.policy, mine.grain, mine.max_duty) == (Policy.PACK, Grain.OPERATION, 0.5)
    assert scenario.rules_of("isolated").policy is Policy.ISOLATED
    assert mine.transfers.bytes_per_s == 10e9


def test_arrivals_come_at_the_stated_load() -> None:
    scenario = load_cluster_scenario(SCENARIOS / "cluster_arrivals.toml").with_jobs(count=2000, max_steps=100)
    plans = scenario.plans()
    # two groups for 30 % of the jobs, which take 100 steps of 284.8 s
    expected = 1.2 * 2 / (0.3 * 100 * 284.8)
    assert len(plans) / plans[-1].submitted == pytest.approx(expected, rel=0.1)
    counts = {name: sum(plan.model == name for plan in plans) for name in ("7B", "30B", "235B")}
    assert counts == {"7B": 1200, "30B": 600, "235B": 200}


def test_a_recorded_trace_gives_the_steps(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"steps": [[5.0, 1.0, 2.0], [7.0, 1.0, 3.0]]}')
    model = SMALL["models"][0] | {"trace": "run.json", "cycle_s": None}
    scenario = check_cluster(SMALL | {"models": [model]}, tmp_path / "x.toml")
    [plan] = scenario.plans()
    assert [step.rollout_s for step in plan.steps] == [5.0, 7.0, 5.0]
    assert plan.spec.trace is not None
    assert (plan.spec.trace.steps, plan.spec.trace.period_s) == (2, 19.0)
