"""Make every simulated table: run the simulations, write the results, and put the tables into benchmarks/README.md.

    python benchmarks/simulate_all.py --jobs 16

About 20 minutes on 16 cores with five seeds. `--only-rewards` makes one of them and leaves the others as they are.
`--tiny --out DIR` shows that everything runs and leaves the kept results
alone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
GRID = ["--grid", "--seeds", "2", "--splits", "0.625"]
"""342 pairs of setting and schedule: two seeds and one split of the devices for all."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1, help="simulations at the same time")
    parser.add_argument("--seeds", type=int, default=5, help="sets of lengths")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder of the result files")
    parser.add_argument("--tiny", action="store_true", help="a few steps, no grid, to see that it runs; needs --out")
    parser.add_argument(
        "--full-size", action="store_true", help="StaleFlow's setting at the paper's size too, one seed"
    )
    parser.add_argument("--only-rewards", action="store_true", help="only the reward row of RollPacker in parts")
    options = parser.parse_args()
    is_kept = options.out.resolve() == HERE / "results"
    if options.tiny and is_kept:
        parser.error("--tiny needs --out: its figures mean nothing and must not replace the kept ones")
    options.out.mkdir(parents=True, exist_ok=True)
    common = ["--jobs", str(options.jobs)]
    seeds = ["--seeds", str(options.seeds)]
    rewards = ["simulated_rewards.py", *common, *seeds, "--json", "simulated_rewards.json"]
    streaming = ["simulated_streaming.py", *common, *seeds, "--json", "simulated_streaming.json"]
    planner = ["simulated_planner.py", *common, *seeds, "--json", "simulated_planner.json"]
    whole = ["simulated_rollpacker.py", *common, *seeds, "--json", "simulated_rollpacker.json"]
    if options.only_rewards:
        calls = [[rewards[0], *["--tiny"] * options.tiny, *rewards[1:]]]
    elif options.tiny:
        calls = [
            ["simulated.py", *common, *seeds, "--tiny", "--no-grid", "--json", "simulated.json"],
            ["simulated_staleflow.py", *common, *seeds, "--tiny", "--scale", "1", "--json", "simulated_staleflow.json"],
            [rewards[0], "--tiny", *rewards[1:]],
            *([script, "--tiny", *rest] for script, *rest in (streaming, planner, whole)),
        ]
    else:
        calls = [
            rewards,
            streaming,
            planner,
            whole,
            ["simulated.py", *common, *seeds, "--json", "simulated.json"],
            ["simulated_staleflow.py", *common, *seeds, "--sweeps", "--json", "simulated_staleflow.json"],
            ["simulated_staleflow.py", *common, *GRID, "--json", "simulated_staleflow_grid.json"],
            ["april_variations.py", *seeds, "--json", "april_variations.json"],
            ["staleflow_checks.py", *common, "--json", "staleflow_checks.json"],
        ]
    if options.full_size:
        size = ["--scale", "8", "--seeds", "1"]
        calls.append(["simulated_staleflow.py", *common, *size, "--json", "simulated_staleflow_full_size.json"])
    for script, *arguments, result in calls:
        began = time.monotonic()
        subprocess.run([sys.executable, str(HERE / script), *arguments, str(options.out / result)], check=True)
        print(f"{script}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    tables = [sys.executable, str(HERE / "tables.py"), "--results", str(options.out)]
    subprocess.run([*tables, "--write"] if is_kept else tables, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
