"""Schedules in virtual time beside the figures of the papers they come from, and the orderings that the papers claim.

    python benchmarks/simulated.py --json benchmarks/results/simulated.json

Scenarios, assumptions and the grid of length distributions are those of `scenarios/`; nothing here is tuned. Every
figure is the mean over the seeds, with the least and the most, also where it is far from the paper's. An ordering is a
count: in how many cells of the grid it holds. `--tiny` only shows that everything runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import grid_orderings
import simulated_grid
import simulated_papers
from simulated_runs import Figures, Run, simulated

TINY_STEPS = 2


def run_all(runs: list[Run], *, jobs: int, is_tiny: bool = False) -> dict[Run, Figures]:
    """Simulate every run once, the longest first; progress goes to stderr."""
    began, found = time.monotonic(), {}
    ordered = sorted(dict.fromkeys(runs), key=Run.work, reverse=True)
    done = [replace(run, steps=min(run.steps, TINY_STEPS)) for run in ordered] if is_tiny else ordered
    with ProcessPoolExecutor(jobs) as pool:
        for run, figures in zip(ordered, pool.map(simulated, done), strict=True):
            found[run] = figures
            if len(found) % 100 == 0 or len(found) == len(ordered):
                took = time.monotonic() - began
                print(f"{len(found)} of {len(ordered)} simulations, {took:.0f} s", file=sys.stderr, flush=True)
    return found


def simulate_all(options: argparse.Namespace) -> dict[str, Any]:
    began, seeds = time.monotonic(), options.seeds
    wanted = [*simulated_papers.runs(seeds), *(simulated_grid.runs(seeds) if options.grid else ())]
    found = run_all(wanted, jobs=options.jobs, is_tiny=options.tiny)
    result: dict[str, Any] = {
        "settings": {
            "seeds": seeds,
            "steps": simulated_papers.STEPS,
            "steps_grid": {"prompts-only-1.5": 6, "others": simulated_grid.PERIOD},
            "is_tiny": options.tiny,
        },
        "papers": simulated_papers.table(found, seeds),
    }
    if options.grid:
        cells = simulated_grid.cells(found, seeds)
        result["grid"] = simulated_grid.table(simulated_grid.over_grid(cells))
        result["cells"] = simulated_grid.compact(cells)
        result["orderings"] = [each.to_dict() for each in grid_orderings.orderings(cells)]
    return result | {"seconds": round(time.monotonic() - began), "jobs": options.jobs}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="simulations at the same time")
    parser.add_argument("--seeds", type=int, default=5, help="sets of lengths")
    parser.add_argument("--no-grid", dest="grid", action="store_false", help="only the papers' own settings")
    parser.add_argument("--tiny", action="store_true", help="two steps each, to see that it runs")
    options = parser.parse_args()
    result = simulate_all(options)
    print("\n".join(simulated_papers.lines(result["papers"])))
    if options.grid:
        print("\n".join(["", *simulated_grid.lines(result["grid"]), ""]))
        for row in result["orderings"]:
            print(
                f"{row['held']:3} of {row['of']:3}  {row['name']}" + (f"; not in {row['not_in']}" * bool(row["not_in"]))
            )
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
