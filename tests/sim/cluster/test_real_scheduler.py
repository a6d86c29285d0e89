"""The simulated world under the real scheduler, and the command that runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim.cluster.clusters import small
from tailrace.cli.main import main
from tailrace.cluster.scheduler import Scheduler
from tailrace.sim.cluster.result import ClusterResult, simulate_cluster
from tailrace.sim.cluster.scenario import ClusterScenario

SCENARIOS = Path(__file__).parents[3] / "scenarios"
POLICIES = ("isolated", "pack", "spread", "spread-backfill")


def run(scenario: ClusterScenario, rules: str) -> ClusterResult:
    return simulate_cluster(scenario, rules, Scheduler)


def is_paid_for(result: ClusterResult) -> bool:
    figures = result.figures
    used = figures.busy_device_hours + figures.reserved_device_hours
    return figures.billed_device_hours == pytest.approx(used)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("overlap", ["serial", "one-step"])
def test_a_lone_job_takes_its_time_alone(policy: str, overlap: str) -> None:
    result = run(small(jobs={"overlap": overlap, "jitter": 0.1, "min_steps": 20, "max_steps": 20}), policy)
    assert result.jobs[0].slowdown == pytest.approx(1.0)
    assert is_paid_for(result)


def test_fitted_jobs_without_transfers_do_not_slow_each_other() -> None:
    nothing = {"weights_gb": 0.0, "optimizer_gb": 0.0}
    jobs = {"count": 2, "min_steps": 20, "max_steps": 20}
    result = run(small(jobs=jobs, models=nothing), "spread")
    assert [job.slowdown for job in result.jobs] == [1.0, 1.0]
    assert result.jobs[1].wait_s > 0  # its first period is shifted behind the other's phase
    # two shared a group nearly all the time, which saves nearly half of its part, two thirds of the devices
    assert result.figures.saving == pytest.approx(1 / 3, abs=0.02)


FAULTS: dict[str, tuple[dict[str, Any], ...]] = {
    "node": ({"kind": "node", "at": 500.0, "node": "a-0/0", "down_s": 300.0},),
    "crash": ({"kind": "crash", "at": 777.0, "job": 1},),
    "slow": ({"kind": "slow", "at": 300.0, "job": 0},),
}


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("policy", POLICIES)
def test_the_other_jobs_finish_after_a_fault(policy: str, kind: str) -> None:
    jobs = {"count": 5, "min_steps": 10, "max_steps": 20, "jitter": 0.1, "known_share": 0.6}
    cluster = {"groups": {"a": 2}}
    result = run(small(faults=FAULTS[kind], jobs=jobs, cluster=cluster), policy)
    assert [job.reason for job in result.jobs].count("finished") == (4 if kind == "crash" else 5)
    assert is_paid_for(result)


@pytest.mark.parametrize("name", ["two_jobs", "arbitration"])
def test_the_command_compares_the_rules_of_a_scenario(name: str, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "result.json"
    assert main(["simulate", str(SCENARIOS / f"cluster_{name}.toml"), "--steps", "3", "--json", str(file)]) == 0
    results = json.loads(file.read_text())
    assert set(results[0]) >= {"policy", "groups", "spans", "jobs", "figures"}
    assert set(results[0]["spans"][0]) == {"group", "job", "kind", "start", "end"}
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == ["rules", *(result["policy"] for result in results)]


def test_the_command_takes_other_policies_and_refuses_unknown_ones(capsys: Any) -> None:
    path = str(SCENARIOS / "cluster_two_jobs.toml")
    assert main(["simulate", path, "--steps", "2", "--schedules", "isolated, pack"]) == 0
    assert main(["simulate", path, "--schedules", "fastest"]) == 2
    assert "there are no rules 'fastest'" in capsys.readouterr().err


def test_sharing_saves_device_hours_and_phase_leases_save_switches() -> None:
    jobs = {"count": 3, "min_steps": 20, "max_steps": 20, "jitter": 0.1}
    rules = {
        "policy": "pack",
        "max_duty": 3.0,
        "max_wait_share": 1.0,
        "variants": {"phase": {"grain": "phase"}, "operation": {"grain": "operation"}},
    }
    scenario = small(jobs=jobs, rules=rules)
    phase, operation = run(scenario, "phase").figures, run(scenario, "operation").figures
    assert phase.switches_per_step < operation.switches_per_step
    assert phase.mean_slowdown < operation.mean_slowdown
    assert phase.saving > operation.saving


def test_a_hold_keeps_a_one_step_job_s_training_behind_its_synchronization() -> None:
    jobs = {"count": 3, "min_steps": 20, "max_steps": 20, "jitter": 0.1, "overlap": "one-step"}
    rules = {
        "policy": "pack",
        "max_duty": 3.0,
        "max_wait_share": 1.0,
        "grain": "phase",
        "variants": {"plain": {"hold_s": 0.0}, "hold": {"hold_s": 6.0}},
    }
    scenario = small(jobs=jobs, rules=rules)
    plain, hold = run(scenario, "plain").figures, run(scenario, "hold").figures
    assert hold.switches_per_step < 0.8 * plain.switches_per_step
    assert hold.mean_slowdown < plain.mean_slowdown


@pytest.mark.parametrize("policy", POLICIES[1:])
@pytest.mark.parametrize("jitter", [0.0, 0.1])
def test_a_backlog_of_jobs_that_nobody_knows_shares_groups_after_their_first_clean_period(
    policy: str, jitter: float
) -> None:
    jobs = {"count": 12, "min_steps": 30, "max_steps": 30, "known_share": 0.0, "jitter": jitter}
    phases = {"logprob_s": 5.0, "update_s": 10.0, "sync_s": 5.0}  # a duty of 0.2, so three jobs may share a group
    scenario = small(jobs=jobs, models=phases, cluster={"groups": {"a": 3}})
    alone, shared = run(scenario, "isolated").figures, run(scenario, policy).figures
    assert shared.num_complete == 12
    assert shared.makespan_s < 0.75 * alone.makespan_s
    assert shared.saving > 0.2
