"""When does it matter in which order queued jobs are admitted, and whether later ones may start before the first?

    python benchmarks/cluster_queue.py --json benchmarks/results/cluster_queue.json

Simulated: Poisson arrivals, 2.4 times as many jobs as the four node groups could finish one at a time, 10 % jitter. Two
sets of jobs:

    alike   the 7B jobs of `scenarios/cluster_arrivals.toml`: all of one demand, 10 to 50 steps
    mixed   jobs of the same devices in two kinds: half of them train for 58 s of 290 s, half for 174 s

With `alike`, a job finds a place wherever the one before it would, so nothing but a shorter job that ends in time can
start before the head of the queue. With `mixed`, the head may need more free time than any group has, while a later
one fits. Wait ratio: time in the queue over the time that the job takes alone.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

import cluster_runs
from simulated_runs import Range

from tailrace.cluster.settings import Order
from tailrace.sim.cluster.scenario import ClusterScenario

POLICIES = ("spread", "spread-backfill")
QUANTILES = ("0.5", "0.75", "0.9", "1")
NUM_JOBS, NUM_GROUPS, SEEDS, STEPS = 80, 4, 5, (10, 50)
LOAD = 2.4
KINDS = {"short phases": (290.0, 58.0), "long phases": (290.0, 174.0)}


def scenario(is_mixed: bool, order: Order) -> ClusterScenario:
    base = cluster_runs.load("arrivals")
    data = base.model_dump()
    small = next(model for model in data["models"] if model["name"] == "7B")
    models = [small]
    if is_mixed:
        models = [
            small | {"name": name, "cycle_s": cycle_s, "logprob_s": 0.2 * busy_s, "update_s": 0.7 * busy_s,
                     "sync_s": 0.1 * busy_s}
            for name, (cycle_s, busy_s) in KINDS.items()
        ]  # fmt: skip
    names = [model["name"] for model in models]
    alone_s = fmean(STEPS) * fmean(model["cycle_s"] for model in models)
    data["models"] = models
    data["cluster"] |= {"total_devices": None, "groups": {name: NUM_GROUPS // len(names) for name in names}}
    data["jobs"] |= {
        "count": NUM_JOBS, "mix": dict.fromkeys(names, 1 / len(names)), "min_steps": STEPS[0], "max_steps": STEPS[1],
        "load": None, "rate_per_hour": LOAD * NUM_GROUPS * 3600 / alone_s,
    }  # fmt: skip
    data["rules"] |= {"order": order, "compare": list(POLICIES)}
    return ClusterScenario.model_validate(data)


def row(name: str, policy: str, order: Order) -> dict[str, Any]:
    made = scenario(name == "mixed", order)
    found = [cluster_runs.run(made, policy, seed).figures for seed in range(SEEDS)]
    waits = {share: Range.over([each.wait_ratio[share] for each in found]).to_dict() for share in QUANTILES}
    return {
        "jobs": name,
        "policy": policy,
        "order": str(order),
        "makespan_h": Range.over([each.makespan_s / 3600 for each in found]).to_dict(),
        "wait_ratio": waits,
        "slowdown": Range.over([each.mean_slowdown for each in found]).to_dict(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for name in ("alike", "mixed"):
        for policy in POLICIES:
            for order in Order:
                rows.append(row(name, policy, order))
                print(json.dumps(rows[-1]), flush=True)
    if options.json is not None:
        sizes = {"num_jobs": NUM_JOBS, "num_groups": NUM_GROUPS, "seeds": SEEDS, "steps": STEPS, "load": LOAD}
        options.json.write_text(json.dumps({"sizes": sizes, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
