"""Rollout coordination under a strict bound, in virtual time, beside StaleFlow's figures, and the orderings it claims.

    python benchmarks/simulated_staleflow.py --json benchmarks/results/simulated_staleflow.json [--grid]

`scenarios/staleflow_30b_a3b.toml` says what is simulated. Every schedule is given the split of the devices between
rollout and training that is best for it, out of the same candidates; `sync` has all devices for both in turns. Speed is
tokens trained per second in steps 6 to 14 of 14. The first steps, which nothing can overlap with, are left out. The
last ones are not, and no work for later steps runs beside them: `async-cap` trains its slowest groups there, so these
figures are better for `staleflow` than those of a long run.
`--grid` adds every length distribution of `scenarios/length_grid.toml` under every cap, and the orderings on it: some
minutes more. Exit status 1: an ordering does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from simulated_grid import Ordering, ordering
from simulated_runs import grid, load

from tailrace.core.events import StepTrained
from tailrace.core.journal import Entry
from tailrace.sim.result import simulate

SCENARIO = "staleflow_30b_a3b"
SPLITS = (0.5, 0.625, 0.75)
BOUNDS = (1, 2, 3)
STEPS, SKIPPED = 14, 5
CAP, LONG_CAP = 20480, 40960
SCALES = (1, 2, 4)
MOST_LOST, NEAR = 0.03, 0.05
ABLATION = ("vanilla@3", "routing@3", "routing+synchronization@3", "staleflow@3")
REDUNDANT = ("group-redundancy@3", "batch-redundancy@3")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What schedules are compared on."""

    lengths: str = ""
    """An entry of the grid; empty: the scenario's own."""
    cap: int = CAP
    scale: int = 2
    """Times an eighth of the paper's batch and devices."""
    batch: int = 0
    """Prompts per step, if not those of the scenario."""

    @property
    def name(self) -> str:
        return f"{self.lengths or 'thinking'}/{self.cap // 1024}k"


@dataclass(frozen=True, kw_only=True)
class Speed:
    tokens_per_s: float
    split: float
    mean_length: float
    staleness_mean: float
    staleness_max: int
    violations: int
    rollout_idle: float
    trainer_idle: float


Job = tuple[Setting, str, float]
Speeds = dict[tuple[Setting, str], Speed]


def measured(job: Job) -> Speed:
    setting, schedule, split = job
    scenario = load(SCENARIO)
    if setting.lengths:
        entries = (*grid().long_tailed, *grid().not_long_tailed)
        scenario = scenario.with_lengths(next(e for e in entries if e.name == setting.lengths), setting.cap)
    else:
        lengths = scenario.lengths.model_copy(update={"max_response_length": setting.cap})
        scenario = scenario.model_copy(update={"lengths": lengths})
    scenario = scenario.colocated() if schedule == "sync" else scenario.with_split(split)
    scenario = scenario.scaled(setting.scale).with_steps(STEPS)
    if setting.batch:
        chosen = scenario.schedule.model_copy(update={"rollout_batch_size": setting.batch})
        scenario = scenario.model_copy(update={"schedule": chosen})
    ends: list[float] = []

    def note(entry: Entry) -> None:
        if isinstance(entry.event, StepTrained):
            ends.append(entry.now)

    result = simulate(scenario, schedule, record=note)
    if not result.is_complete:
        raise RuntimeError(f"{job} did not come to its end: {result.reason}")
    seconds = (ends[-1] - ends[SKIPPED - 1]) / (len(ends) - SKIPPED)
    figures, chosen = result.figures, scenario.schedule
    return Speed(
        tokens_per_s=figures.tokens_trained / figures.num_steps / seconds,
        split=split,
        mean_length=figures.tokens_trained
        / (figures.num_steps * chosen.rollout_batch_size * chosen.n_samples_per_prompt),
        staleness_mean=figures.staleness_mean,
        staleness_max=figures.staleness_max,
        violations=figures.staleness_violations,
        rollout_idle=figures.rollout_idle_share,
        trainer_idle=figures.trainer_idle_share,
    )


def run_all(wanted: Iterable[tuple[Setting, str]], workers: int) -> Speeds:
    """The best split of each."""
    jobs: list[Job] = [
        (setting, schedule, split)
        for setting, schedule in dict.fromkeys(wanted)
        for split in ((0.0,) if schedule == "sync" else SPLITS)
    ]
    jobs.sort(key=lambda job: (-job[0].scale, job[1] == "sync"))
    best: Speeds = {}
    began = time.monotonic()
    with ProcessPoolExecutor(workers) as pool:
        for number, (job, speed) in enumerate(zip(jobs, pool.map(measured, jobs), strict=True), 1):
            key = job[0], job[1]
            if key not in best or speed.tokens_per_s > best[key].tokens_per_s:
                best[key] = speed
            if number % 25 == 0 or number == len(jobs):
                took = time.monotonic() - began
                print(f"{number} of {len(jobs)} simulations, {took:.0f} s", file=sys.stderr, flush=True)
    return best


def systems(bounds: Iterable[int] = BOUNDS) -> list[str]:
    return ["sync", "one-step", *(f"{name}@{bound}" for bound in bounds for name in ("async-cap", "staleflow"))]


MAIN = Setting()
ABLATED = Setting(cap=LONG_CAP)
SWEEPS = {
    "response length": [Setting(cap=cap) for cap in (CAP // 2, CAP, LONG_CAP)],
    "batch size": [Setting(batch=batch) for batch in (16, 32, 64)],
    "devices, with the batch": [Setting(scale=scale) for scale in SCALES],
}
SWEPT = systems([3])


def places(is_long_tailed: bool) -> list[Setting]:
    entries = grid().long_tailed if is_long_tailed else grid().not_long_tailed
    caps = grid().caps if is_long_tailed else grid().caps[:1]
    return [Setting(lengths=entry.name, cap=cap, scale=1) for entry in entries for cap in caps]


def wanted(has_grid: bool) -> Iterator[tuple[Setting, str]]:
    yield from ((MAIN, schedule) for schedule in systems())
    yield from ((ABLATED, schedule) for schedule in (*ABLATION, *REDUNDANT, "async-cap@3"))
    yield from ((setting, schedule) for settings in SWEEPS.values() for setting in settings for schedule in SWEPT)
    if has_grid:
        yield from ((setting, schedule) for setting in places(True) for schedule in (*systems(), *ABLATION[:3]))
        yield from ((setting, schedule) for setting in places(True) for schedule in REDUNDANT)
        yield from ((setting, schedule) for setting in places(False) for schedule in systems([3]))


def ratio(found: Speeds, setting: Setting, of: str, over: str) -> float:
    return found[setting, of].tokens_per_s / found[setting, over].tokens_per_s


def papers(found: Speeds) -> list[tuple[str, float, float]]:
    """What the paper says (average, best) against the mean and the best over the three bounds."""
    rows = []
    for over, average, most in (("sync", 2.01, 2.68), ("one-step", 1.52, 1.95), ("async-cap", 1.17, 1.42)):
        gains = [
            ratio(found, MAIN, f"staleflow@{b}", f"async-cap@{b}" if over == "async-cap" else over) for b in BOUNDS
        ]
        rows.append((f"over {over}, average of bounds 1, 2, 3 (paper: of models and bounds)", average, sum(gains) / 3))
        rows.append((f"over {over}, best", most, max(gains)))
    return rows


def orderings(found: Speeds) -> Iterator[Ordering]:
    tailed = places(True)
    chain = [
        ("async-cap", "staleflow@{0}", "async-cap@{0}"),
        ("one-step", "async-cap@{0}", "one-step"),
        ("sync", "one-step", "sync"),
    ]
    for name, of, over in chain:
        pairs = [(s, b, ratio(found, s, of.format(b), over.format(b))) for s in tailed for b in BOUNDS]
        better = of.split("@")[0]
        yield ordering(f"{better} is faster than {name}", ((f"{s.name}@{b} {r:.2f}", r > 1) for s, b, r in pairs))
    yield ordering("the lead over async-cap grows with the bound", _grows_with_bound(found, tailed))
    yield ordering("the lead over async-cap grows with the cap", _grows_with_cap(found, tailed))
    vanilla = [(s, ratio(found, s, "vanilla@3", "async-cap@3")) for s in tailed]
    yield ordering(
        f"all strategies vanilla: within {NEAR:.0%} of async-cap",
        ((f"{s.name} {r:.2f}", abs(r - 1) <= NEAR) for s, r in vanilla),
    )
    for before, after in pairwise(ABLATION):
        steps = [(s, ratio(found, s, after, before)) for s in tailed]
        yield ordering(f"{after} is faster than {before}", ((f"{s.name} {r:.2f}", r > 1) for s, r in steps))
    yield ordering("redundancy shortens responses, by batch more than by group", _shortened(found, tailed))
    strict = [(s, b, found[s, f"staleflow@{b}"]) for s in tailed for b in BOUNDS]
    yield ordering("no group above the bound", ((f"{s.name}@{b}", not v.violations) for s, b, v in strict))
    yield ordering("most groups at the bound", _at_the_bound(strict))
    flat = [(s, n, ratio(found, s, n, "sync")) for s in places(False) for n in systems([3])]
    yield ordering(
        f"without a long tail nothing loses more than {MOST_LOST:.0%}",
        ((f"{s.name} {n} {r:.2f}", r >= 1 - MOST_LOST) for s, n, r in flat),
    )


def _at_the_bound(strict: list[tuple[Setting, int, Speed]]) -> Iterator[tuple[str, bool]]:
    """At most half a version between the mean and what it would be with every group at the bound from the start."""
    for setting, bound, speed in strict:
        most = sum(min(step, bound) for step in range(STEPS)) / STEPS
        yield f"{setting.name}@{bound} {speed.staleness_mean:.2f} of {most:.2f}", speed.staleness_mean > most - 0.5


def _leads(found: Speeds, setting: Setting) -> list[float]:
    return [ratio(found, setting, f"staleflow@{b}", f"async-cap@{b}") for b in BOUNDS]


def _grows_with_bound(found: Speeds, tailed: list[Setting]) -> Iterator[tuple[str, bool]]:
    for setting in tailed:
        leads = _leads(found, setting)
        yield f"{setting.name} {leads[0]:.2f} -> {leads[-1]:.2f}", leads[-1] > leads[0]


def _grows_with_cap(found: Speeds, tailed: list[Setting]) -> Iterator[tuple[str, bool]]:
    for name in dict.fromkeys(setting.lengths for setting in tailed):
        first, *_, last = [_leads(found, setting)[-1] for setting in tailed if setting.lengths == name]
        yield f"{name} {first:.2f} -> {last:.2f}", last > first


def _shortened(found: Speeds, tailed: list[Setting]) -> Iterator[tuple[str, bool]]:
    for setting in tailed:
        plain, group, batch = (found[setting, name].mean_length for name in ("staleflow@3", *REDUNDANT))
        yield f"{setting.name} {plain:.0f}, {group:.0f}, {batch:.0f}", batch < group < plain


def show(found: Speeds) -> None:
    print(f"{'':72} {'paper':>6}  simulated")
    for name, paper, simulated in papers(found):
        print(f"{name:72} {paper:6.2f}  {simulated:9.2f}")
    print(f"\n{'setting':16} {'schedule':28} {'tok/s':>8} {'over sync':>9}  split  staleness mean/max  above the bound")
    for (setting, schedule), speed in found.items():
        if setting in (MAIN, ABLATED):
            sync = found.get((setting, "sync"))
            gain = f"{speed.tokens_per_s / sync.tokens_per_s:9.2f}" if sync else " " * 9
            stale = f"{speed.staleness_mean:.2f}/{speed.staleness_max}"
            print(
                f"{setting.name:16} {schedule:28} {speed.tokens_per_s:8.0f} {gain}  {speed.split:5.3f}"
                f"  {stale:>18}  {speed.violations:15}"
            )
    for name, settings in SWEEPS.items():
        print(f"\n{name}: over sync")
        for setting in settings:
            gains = "  ".join(f"{s} {ratio(found, setting, s, 'sync'):.2f}" for s in SWEPT[1:])
            size = setting.batch or setting.scale * load(SCENARIO).schedule.rollout_batch_size
            print(f"  cap {setting.cap}, {size} prompts, {16 * setting.scale} devices: {gains}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--grid", action="store_true", help="every length distribution under every cap too")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    began = time.monotonic()
    found = run_all(wanted(options.grid), options.workers)
    show(found)
    checked = list(orderings(found)) if options.grid else []
    for each in checked:
        print(each.line())
    if options.json:
        options.json.write_text(json.dumps(_result(found, checked, options, time.monotonic() - began), indent=1) + "\n")
    return 0 if all(each.holds for each in checked) else 1


def _result(found: Speeds, checked: list[Ordering], options: argparse.Namespace, seconds: float) -> Mapping[str, Any]:
    rows = [asdict(setting) | {"schedule": schedule} | asdict(speed) for (setting, schedule), speed in found.items()]
    return {
        "papers": [
            {"name": name, "paper": paper, "simulated": round(value, 3)} for name, paper, value in papers(found)
        ],
        "orderings": [each.to_dict() for each in checked],
        "runs": rows,
        "seconds": round(seconds, 1),
        "workers": options.workers,
    }


if __name__ == "__main__":
    sys.exit(main())
