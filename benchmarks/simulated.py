"""Schedules in virtual time beside the figures of the papers they come from, and the orderings that must hold.

    python benchmarks/simulated.py --json benchmarks/results/simulated.json

Scenarios, assumptions and the grid of length distributions are those of `scenarios/`; nothing here is tuned. Every
figure is printed as it comes out, also where it is far from the paper's. Exit status 1: an ordering does not hold.
`--sets 12` takes more sets of lengths for speculation than fit into three minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import grid_orderings
import simulated_grid
import simulated_papers
from simulated_runs import Figures, Run, simulated


def run_all(runs: list[Run], workers: int) -> dict[Run, Figures]:
    """Every run once, the longest first; progress goes to stderr."""
    began, found = time.monotonic(), {}
    ordered = sorted(dict.fromkeys(runs), key=Run.work, reverse=True)
    with ProcessPoolExecutor(workers) as pool:
        for run, figures in zip(ordered, pool.map(simulated, ordered), strict=True):
            found[run] = figures
            if len(found) % 25 == 0 or len(found) == len(ordered):
                took = time.monotonic() - began
                print(f"{len(found)} of {len(ordered)} simulations, {took:.0f} s", file=sys.stderr, flush=True)
    return found


def report(found: dict[Run, Figures], sets: int) -> tuple[dict[str, Any], bool]:
    cells = simulated_grid.cells(found, sets)
    papers, grid = simulated_papers.table(found), simulated_grid.table(cells)
    orderings = grid_orderings.orderings(cells)
    print("\n".join([*simulated_papers.lines(papers), "", *simulated_grid.lines(grid), ""]))
    for ordering in orderings:
        print(ordering.line())
    print(f"(speculation: the mean over {sets} sets of lengths; with more of them other checks may fail)")
    result = {"papers": papers, "grid": grid, "orderings": [ordering.to_dict() for ordering in orderings]}
    return result, all(ordering.holds for ordering in orderings)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write every figure of every run to this file")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--sets", type=int, default=simulated_grid.SETS, help="of lengths, for speculation on the grid")
    parser.add_argument("--brief", action="store_true", help="leave single runs out of the file")
    options = parser.parse_args()
    began = time.monotonic()
    found = run_all([*simulated_papers.runs(), *simulated_grid.runs(options.sets)], options.workers)
    result, holds = report(found, options.sets)
    result |= {"seconds": round(time.monotonic() - began, 1), "workers": options.workers, "sets": options.sets}
    if not options.brief:
        result["runs"] = [run.to_dict() | {"figures": figures.to_dict()} for run, figures in found.items()]
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
