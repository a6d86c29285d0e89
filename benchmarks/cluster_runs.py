"""The simulations of `cluster.py`: four questions, each answered by rows of figures over the seeds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from simulated_runs import SCENARIOS, Range

from tailrace.cluster.scheduler import Scheduler
from tailrace.sim.cluster.result import QUANTILES, ClusterResult, simulate_cluster
from tailrace.sim.cluster.scenario import ClusterScenario
from tailrace.sim.cluster.scenario_file import load_cluster_scenario

POLICIES = ("isolated", "pack", "spread", "spread-backfill")
SHARING = POLICIES[1:]
MODELS = ("7B", "30B", "235B")
PAPER_SAVING = {"7B": 0.3136, "30B": 0.3010, "235B": 0.3758}
ARBITRATION = (
    "hrrs-phase", "fcfs-phase", "hrrs-phase-hold",
    "hrrs-operation", "fcfs-operation", "execution-operation", "hrrs-hold",
)  # fmt: skip
SHARES = (0.5, 0.6, 2 / 3, 0.75, 0.8)
"""Shares of training devices among all devices of a job."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    seeds: int
    jobs: int
    """Jobs of the backlog and of the arrivals."""
    steps: tuple[int, int]
    """Least and most steps of these jobs."""
    arbitration_steps: int


DEFAULT = Sizes(seeds=5, jobs=60, steps=(5, 25), arbitration_steps=20)
FULL = Sizes(seeds=5, jobs=120, steps=(100, 500), arbitration_steps=100)
TINY = Sizes(seeds=1, jobs=12, steps=(2, 3), arbitration_steps=2)


@cache
def load(name: str) -> ClusterScenario:
    return load_cluster_scenario(SCENARIOS / f"cluster_{name}.toml")


def run(scenario: ClusterScenario, rules: str, seed: int) -> ClusterResult:
    result = simulate_cluster(scenario.with_seed(seed), rules, Scheduler)
    if not result.is_complete:
        raise RuntimeError(f"{scenario.name}, {rules}, seed {seed}: not every job was complete")
    return result


def many(name: str, sizes: Sizes) -> ClusterScenario:
    return load(name).with_jobs(count=sizes.jobs, min_steps=sizes.steps[0], max_steps=sizes.steps[1])


def backlog(sizes: Sizes, total_devices: int) -> list[dict[str, Any]]:
    """Makespan of each policy over that of isolated with the same jobs, for 1 to 4 jobs per node group."""
    base = many("backlog", sizes).with_cluster(total_devices=total_devices)
    isolated = [run(base, "isolated", seed).figures.makespan_s for seed in range(sizes.seeds)]
    rows = []
    for most in (1, 2, 3, 4):
        scenario = base.with_rules(max_jobs_per_group=most)
        partition = scenario.partition_of(scenario.rules_of("spread"))
        ratios = {
            policy: [run(scenario, policy, seed).figures.makespan_s / isolated[seed] for seed in range(sizes.seeds)]
            for policy in SHARING
        }
        rows.append(
            {
                "jobs_per_group": dict(partition.jobs_per_group),
                "groups": dict(partition.groups),
                "most": most,
                "ratio": {policy: Range.over(found).to_dict() for policy, found in ratios.items()},
                "by_seed": {policy: [round(ratio, 4) for ratio in found] for policy, found in ratios.items()},
                "divisible": round(divisible(scenario), 3),
            }
        )
    return rows


def divisible(scenario: ClusterScenario) -> float:
    """Return the ratio if groups could be divided at will, nobody were slowed down and no device were left over."""

    def work(rules: str) -> float:
        sharing = scenario.partition_of(scenario.rules_of(rules)).jobs_per_group
        devices = {m.name: m.train_devices / sharing[m.name] + m.rollout_devices for m in scenario.models}
        return sum(scenario.jobs.mix[m.name] * (m.cycle_s or 0.0) * devices[m.name] for m in scenario.models)

    return work("spread") / work("isolated")


def unknown(sizes: Sizes) -> list[dict[str, Any]]:
    """Makespan over isolated, if the demand of none, half or all of the jobs is known when they are submitted."""
    least = sizes.arbitration_steps
    base = load("backlog").with_jobs(count=24, mix={"7B": 1.0}, min_steps=least, max_steps=3 * least)
    base = base.with_cluster(total_devices=None, groups={"7B": 4})
    rows = []
    for share in (0.0, 0.5, 1.0):
        scenario = base.with_jobs(known_share=share)
        isolated = [run(scenario, "isolated", seed).figures.makespan_s for seed in range(sizes.seeds)]
        for policy in SHARING:
            found = [run(scenario, policy, seed).figures for seed in range(sizes.seeds)]
            ratios = [each.makespan_s / alone for each, alone in zip(found, isolated, strict=True)]
            rows.append(
                {
                    "known_share": share,
                    "policy": policy,
                    "ratio": Range.over(ratios).to_dict(),
                    "saving": Range.over([each.saving for each in found]).to_dict(),
                    "slowdown": Range.over([each.mean_slowdown for each in found]).to_dict(),
                }
            )
    return rows


def arrivals(sizes: Sizes) -> list[dict[str, Any]]:
    """Quantiles of the wait ratio of each policy."""
    scenario, rows = many("arrivals", sizes), []
    for policy in POLICIES:
        found = [run(scenario, policy, seed).figures for seed in range(sizes.seeds)]
        waits = {f"{share:g}": Range.over([each.wait_ratio[f"{share:g}"] for each in found]) for share in QUANTILES}
        rows.append(
            {
                "policy": policy,
                "wait_ratio": {share: value.to_dict() for share, value in waits.items()},
                "by_seed": [{share: round(each.wait_ratio[share], 3) for share in waits} for each in found],
                "slowdown": Range.over([each.mean_slowdown for each in found]).to_dict(),
            }
        )
    return rows


def one_model(name: str, model: str, jobs: int, *, rules: dict[str, Any], **changes: Any) -> ClusterScenario:
    """Return the scenario with one node group of one model and this many jobs."""
    scenario = load(name).with_jobs(count=jobs, mix={model: 1.0}, **changes)
    return scenario.with_cluster(groups={model: 1}).with_rules(**rules)


def two_jobs(sizes: Sizes) -> list[dict[str, Any]]:
    """Saving of device-hours per step over the share of training devices, without and with switches that are predicted,
    and without and with room for a prefetch."""
    return [
        _two_jobs(sizes, model, predicted=predicted, room=room)
        for model in MODELS
        for predicted in (False, True)
        for room in (1.0, 2.0)
    ]


def _two_jobs(sizes: Sizes, model: str, *, predicted: bool, room: float) -> dict[str, Any]:
    scenario = one_model("two_jobs", model, 2, rules={"predict_switches": predicted})
    scenario = scenario.with_cluster(room_for_states=room)
    found = [run(scenario, "spread", seed) for seed in range(sizes.seeds)]
    [section] = [each for each in scenario.models if each.name == model]
    return {
        "model": model,
        "predict_switches": predicted,
        "room_for_states": room,
        "share": round(section.train_devices / (section.train_devices + section.rollout_devices), 3),
        "paper": PAPER_SAVING[model],
        "slowdown": Range.over([each.figures.mean_slowdown for each in found]).to_dict(),
        "switches_per_step": Range.over([each.figures.switches_per_step for each in found]).to_dict(),
        "saving": Range.over([each.figures.saving for each in found]).to_dict(),
        "saving_by_seed": [round(each.figures.saving, 4) for each in found],
        "by_share": {
            f"{share:.3f}": Range.over([saving_at(each, share) for each in found]).to_dict() for share in SHARES
        },
        "share_of_paper": Range.over([share_for(each, PAPER_SAVING[model]) for each in found]).to_dict(),
    }


def relative_costs(result: ClusterResult) -> tuple[float, float]:
    """Return the device-hours of training and of rollout, each over those of lone jobs. They do not depend on how many
    devices each has, because times do not."""
    figures, alone_h = result.figures, sum(job.alone_s for job in result.jobs) / 3600
    [(_, train)] = result.groups
    rollout = (figures.devices - train) / len(result.jobs)
    return figures.train_device_hours / (train * alone_h), figures.rollout_device_hours / (rollout * alone_h)


def saving_at(result: ClusterResult, share: float) -> float:
    train, rollout = relative_costs(result)
    return 1 - share * train - (1 - share) * rollout


def share_for(result: ClusterResult, saving: float) -> float:
    """Return the share of training devices at which this saving is met."""
    train, rollout = relative_costs(result)
    return (saving - 1 + rollout) / (rollout - train)


def arbitration(sizes: Sizes) -> list[dict[str, Any]]:
    """Slowdown and switches per step of each set of rules, for each model and 2 to 4 jobs."""
    rows = []
    for overlap in ("serial", "one-step"):
        for model in MODELS:
            for jobs in (2, 3, 4):
                steps = {"min_steps": sizes.arbitration_steps, "max_steps": sizes.arbitration_steps}
                scenario = one_model(
                    "arbitration", model, jobs, rules={"max_jobs_per_group": jobs}, overlap=overlap, **steps
                )
                for rules in ARBITRATION:
                    found = [run(scenario, rules, seed).figures for seed in range(sizes.seeds)]
                    slowdowns = [each.mean_slowdown for each in found]
                    rows.append(
                        {
                            "overlap": overlap,
                            "model": model,
                            "jobs": jobs,
                            "rules": rules,
                            "slowdown": Range.over(slowdowns).to_dict(),
                            "switches_per_step": Range.over([each.switches_per_step for each in found]).to_dict(),
                            "by_seed": [round(value, 4) for value in slowdowns],
                        }
                    )
    return rows
