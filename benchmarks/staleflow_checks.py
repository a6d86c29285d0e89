"""Do two choices behind the StaleFlow tables matter: the window that is measured, and the split of the devices?

    python benchmarks/staleflow_checks.py --json benchmarks/results/staleflow_checks.json

Windows: `async-cap` is measured in a later and longer window than the other schedules. Here some cells of the grid are
measured in both windows. Splits: in the ablation every row has the split that is best for it. Here its rows have the
same split, too. Bound 3 and the first seed throughout.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from simulated_staleflow import LONG_CAP, SPLITS
from staleflow_orderings import ABLATION, REFERENCES
from staleflow_settings import LONG_WINDOW, WINDOW, Job, Setting, Window, measured

CELLS = [Setting(lengths=name, cap=cap, scale=1) for name, cap in (
    ("mild", 8192), ("heavy", 32768), ("thinking", 8192), ("thinking", 16384)
)]  # fmt: skip
WINDOWS = {"short": WINDOW, "long": LONG_WINDOW}
ABLATED = Setting(cap=LONG_CAP)
GRID_SPLIT = 0.625


def in_window(cell: Setting, schedule: str, window: Window) -> Job:
    return cell, f"{schedule}@3", GRID_SPLIT, 0, window


def with_split(schedule: str, split: float) -> Job:
    return ABLATED, schedule, split, 0, WINDOW


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--jobs", type=int, default=1, help="simulations at the same time")
    options = parser.parse_args()
    names = (*REFERENCES, "staleflow")
    jobs = [in_window(cell, name, window) for cell in CELLS for name in names for window in WINDOWS.values()]
    jobs += [with_split(name, split) for name in ABLATION for split in SPLITS]
    with ProcessPoolExecutor(options.jobs) as pool:
        speed = dict(zip(jobs, (round(each.tokens_per_s) for each in pool.map(measured, jobs)), strict=True))
    windows = []
    for cell in CELLS:
        speeds = {n: {w: speed[in_window(cell, n, window)] for w, window in WINDOWS.items()} for n in names}
        leads = {n: {w: round(speeds["staleflow"][w] / speeds[n][w], 3) for w in WINDOWS} for n in REFERENCES}
        windows.append({"cell": cell.name, "tokens_per_s": speeds, "lead_over": leads})
    splits = [{"schedule": n, "tokens_per_s": {str(s): speed[with_split(n, s)] for s in SPLITS}} for n in ABLATION]
    result = {"bound": 3, "seed": 0, "windows": windows, "splits_at_40k": splits}
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
