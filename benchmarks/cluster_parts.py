"""Jobs on one node group that move only the parts of their state that are needed, in virtual time.

    python benchmarks/cluster_parts.py --json benchmarks/results/cluster_parts.json     about a minute on one core

The scenario is `scenarios/cluster_state_parts.toml`, which states the assumptions. Every figure is the mean over five
seeds, with the least and the most.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import cluster_runs
from simulated_runs import Range

USES = {"30B-whole": "whole", "30B-lazy": "lazy", "30B-host": "lazy, optimizer on the host"}
NUM_SEEDS, NUM_STEPS = 5, 100


def measured(num_seeds: int, num_steps: int) -> dict[str, Any]:
    return {
        "seeds": num_seeds,
        "steps": num_steps,
        "rows": [
            row(model, rules, jobs, num_seeds, num_steps)
            for jobs in (2, 3)
            for model in USES
            for rules in ("when-asked", "in-advance")
        ],
    }


def row(model: str, rules: str, jobs: int, num_seeds: int, num_steps: int) -> dict[str, Any]:
    steps = {"min_steps": num_steps, "max_steps": num_steps}
    scenario = cluster_runs.one_model("state_parts", model, jobs, rules={"max_jobs_per_group": jobs}, **steps)
    found = [cluster_runs.run(scenario, rules, seed).figures for seed in range(num_seeds)]
    return {
        "jobs": jobs,
        "state": USES[model],
        "rules": rules,
        "slowdown": Range.over([each.mean_slowdown for each in found]).to_dict(),
        "saving": Range.over([each.saving for each in found]).to_dict(),
        "saving_by_seed": [round(each.saving, 4) for each in found],
        "tb_per_step": Range.over([each.bytes_moved / each.num_steps / 1e12 for each in found]).to_dict(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--tiny", action="store_true", help="one seed of a few steps, to see that it runs")
    options = parser.parse_args()
    result = measured(1, 3) if options.tiny else measured(NUM_SEEDS, NUM_STEPS)
    for each in result["rows"]:
        print(f"{each['jobs']} jobs, {each['state']}, {each['rules']}: {each['saving']['mean']:.1%} saved")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
