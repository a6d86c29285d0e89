"""Rollout coordination under a strict bound, in virtual time, beside StaleFlow's figures, and the orderings it claims.

    python benchmarks/simulated_staleflow.py --sweeps --json benchmarks/results/simulated_staleflow.json
    python benchmarks/simulated_staleflow.py --grid --json benchmarks/results/simulated_staleflow_grid.json

`scenarios/staleflow_30b_a3b.toml` says what is simulated. Every schedule has the split of the devices between rollout
and training that is best for it, out of the same candidates, chosen with the first seed; `sync` uses all devices in
turns. Speed is tokens trained per second in the middle of a run: neither the first steps, which nothing overlaps
with, nor the last, beside which no later work runs. `async-cap` has a longer window, because it becomes steady late.

Every figure is the mean over the seeds, with the least and the most; ratios are taken seed by seed. `--grid` simulates
every length distribution of `scenarios/length_grid.toml` under every cap instead, and counts in how many cells an
ordering holds; `--splits` may leave out candidates, because the grid is large.
`--scale 8` has the paper's batch and devices. `--tiny` only shows that everything runs: its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import staleflow_orderings as claims
from simulated_runs import Range, load
from staleflow_orderings import ABLATION, BOUNDS, REDUNDANT, REFERENCES, Found, ratio, ratios, systems
from staleflow_settings import (
    CAP,
    LONG_WINDOW,
    SCENARIO,
    TINY_WINDOW,
    WINDOW,
    Job,
    Setting,
    Speed,
    Speeds,
    Window,
    measured,
)

SPLITS = (0.5, 0.625, 0.75)
LONG_CAP = 2 * CAP
PAPER = {"sync": (2.01, 2.68), "one-step": (1.52, 1.95), **dict.fromkeys(REFERENCES, (1.17, 1.42))}
"""Average and best lead in the paper. For its asynchronous baseline it has one pair of figures."""
SWEPT = ["sync", "one-step", "vanilla@3", "staleflow@3"]
Wanted = tuple[Setting, str]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The paper's setting at one size, and what it is varied by."""

    main: Setting

    @property
    def ablated(self) -> Setting:
        return replace(self.main, cap=LONG_CAP)

    @property
    def sweeps(self) -> dict[str, list[Setting]]:
        size = self.main.scale * load(SCENARIO).schedule.rollout_batch_size
        return {
            "response length": [replace(self.main, cap=cap) for cap in (CAP // 2, CAP, LONG_CAP)],
            "batch size": [replace(self.main, batch=batch) for batch in (size // 2, size, 2 * size)],
            "devices, with the batch": [replace(self.main, scale=scale) for scale in (1, 2, 4)],
        }

    def wanted(self) -> list[Wanted]:
        ablated = (*ABLATION, *REDUNDANT, "async-order@3", "async-cap@3")
        return [*((self.main, name) for name in systems()), *((self.ablated, name) for name in ablated)]

    def swept(self) -> list[Wanted]:
        return [(setting, name) for settings in self.sweeps.values() for setting in settings for name in SWEPT]


class Simulations:
    """Runs what is wanted, on several cores."""

    def __init__(self, *, jobs: int, is_tiny: bool, splits: Sequence[float] = SPLITS) -> None:
        self._jobs, self._is_tiny, self._candidates = jobs, is_tiny, tuple(splits)

    def run(self, wanted: Iterable[Wanted], seeds: int) -> Found:
        """The best split of each is chosen with the first seed; then the other seeds run with it."""
        pairs = list(dict.fromkeys(wanted))
        short = TINY_WINDOW if self._is_tiny else WINDOW
        tried: list[Job] = [(s, name, split, 0, short) for s, name in pairs for split in self._splits(name)]
        first = self._measure(tried)
        best: dict[Wanted, Job] = {}
        for job, speed in first.items():
            if (kept := best.get(job[:2])) is None or speed.tokens_per_s > first[kept].tokens_per_s:
                best[job[:2]] = job
        rest: list[Job] = [
            (s, name, best[s, name][2], seed, self._window(name)) for s, name in pairs for seed in range(seeds)
        ]
        found = first | self._measure([job for job in rest if job not in first])
        return {pair: Speeds(speeds=tuple(found[job] for job in rest if job[:2] == pair)) for pair in pairs}

    def _window(self, schedule: str) -> Window:
        if self._is_tiny:
            return TINY_WINDOW
        return LONG_WINDOW if schedule.startswith("async-cap") else WINDOW

    def _splits(self, schedule: str) -> tuple[float, ...]:
        """Shares of the devices that rollout has."""
        if schedule == "sync":
            return (0.0,)
        return SPLITS[1:2] if self._is_tiny else self._candidates

    def _measure(self, jobs: Sequence[Job]) -> dict[Job, Speed]:
        ordered = sorted(jobs, key=lambda job: -job[0].scale * (job[0].cap if not job[0].lengths else 1) * job[4].steps)
        found: dict[Job, Speed] = {}
        began = time.monotonic()
        with ProcessPoolExecutor(self._jobs) as pool:
            for job, speed in zip(ordered, pool.map(measured, ordered), strict=True):
                found[job] = speed
                if len(found) % 100 == 0 or len(found) == len(ordered):
                    took = time.monotonic() - began
                    print(f"{len(found)} of {len(ordered)} simulations, {took:.0f} s", file=sys.stderr, flush=True)
        return found


def leads(plan: Plan, found: Found) -> Iterator[dict[str, Any]]:
    """The lead of `staleflow` over each schedule in the paper's setting: by bound, and as the paper sums it up."""
    for over, (average, best) in PAPER.items():
        by_bound = {
            bound: ratios(found, plan.main, f"staleflow@{bound}", f"{over}@{bound}" if over in REFERENCES else over)
            for bound in BOUNDS
        }
        per_seed = list(zip(*by_bound.values(), strict=True))
        yield {
            "over": over,
            "paper": {"average": average, "best": best},
            "average": Range.over([fmean(each) for each in per_seed]).to_dict(),
            "best": Range.over([max(each) for each in per_seed]).to_dict(),
            "by_bound": {str(bound): Range.over(each).to_dict() for bound, each in by_bound.items()},
        }


def rows(plan: Plan, found: Found) -> Iterator[dict[str, Any]]:
    """Every schedule in the paper's setting, and those of its ablation."""
    for (setting, schedule), speeds in found.items():
        if setting in (plan.main, plan.ablated):
            bound = int(schedule.rpartition("@")[2]) if "@" in schedule else int(schedule == "one-step")
            stale = {"share_at_bound": round(speeds.share_at(bound), 3), "groups_above_bound": speeds.num_above(bound)}
            yield {"setting": setting.name, "schedule": schedule, **speeds.to_dict(), **stale}


def sweeps(plan: Plan, found: Found) -> Iterator[dict[str, Any]]:
    for name, settings in plan.sweeps.items():
        for setting in settings:
            size = setting.batch or setting.scale * load(SCENARIO).schedule.rollout_batch_size
            over_sync = {s: round(ratio(found, setting, s, "sync"), 3) for s in SWEPT[1:]}
            yield {
                "sweep": name,
                "cap": setting.cap,
                "prompts": size,
                "devices": 16 * setting.scale,
                "over_sync": over_sync,
            }


def simulate_all(options: argparse.Namespace) -> dict[str, Any]:
    began = time.monotonic()
    simulations = Simulations(jobs=options.jobs, is_tiny=options.tiny, splits=options.splits)
    result: dict[str, Any] = {
        "settings": {
            "scenario": SCENARIO,
            "seeds": options.seeds,
            "window": f"steps {WINDOW.first + 1} to {WINDOW.steps - WINDOW.last} of {WINDOW.steps}",
            "window_async_cap": f"steps {LONG_WINDOW.first + 1} to {LONG_WINDOW.steps - LONG_WINDOW.last}"
            f" of {LONG_WINDOW.steps}",
            "splits": options.splits,
            "is_tiny": options.tiny,
        }
    }
    result |= on_the_grid(simulations, options) if options.grid else in_the_papers_setting(simulations, options)
    return result | {"seconds": round(time.monotonic() - began), "jobs": options.jobs}


def in_the_papers_setting(simulations: Simulations, options: argparse.Namespace) -> dict[str, Any]:
    plan = Plan(main=Setting(scale=options.scale))
    found = simulations.run(plan.wanted(), options.seeds)
    result = {"scale": options.scale, "leads": list(leads(plan, found)), "rows": list(rows(plan, found))}
    if options.sweeps:
        result["sweeps"] = list(sweeps(plan, simulations.run(plan.swept(), 1)))
    return result


def on_the_grid(simulations: Simulations, options: argparse.Namespace) -> dict[str, Any]:
    found = simulations.run(claims.wanted(), options.seeds)
    return {
        "grid": claims.over_grid(found),
        "async_cap_drift": claims.drift_over_grid(found),
        "orderings": [each.to_dict() for each in claims.orderings(found)],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--grid", action="store_true", help="every length distribution under every cap")
    parser.add_argument("--sweeps", action="store_true", help="other caps, batches and devices too, with one seed")
    parser.add_argument(
        "--splits", type=float, nargs="+", default=SPLITS, help="candidates for the share of devices that rollout has"
    )
    parser.add_argument("--scale", type=int, default=2, help="of the main setting, in eighths of the paper's size")
    parser.add_argument("--seeds", type=int, default=5, help="sets of lengths")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="simulations at the same time")
    parser.add_argument("--tiny", action="store_true", help="a few steps and one split, to see that it runs")
    options = parser.parse_args()
    result = simulate_all(options)
    for row in result.get("leads", ()):
        print(f"staleflow over {row['over']:12} {row['average']}, best {row['best']}; paper {row['paper']}")
    for row in result.get("rows", ()):
        print(f"{row['setting']:10} {row['schedule']:28} {row['tokens_per_s']}  drift {row['drift']}")
    for row in result.get("orderings", ()):
        print(f"{row['held']:3} of {row['of']:3}  {row['name']}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
