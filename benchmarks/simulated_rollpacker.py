"""RollPacker's Table 2 in virtual time, all rows on one set of assumptions, and `rollpacker` beside stage overlap.

    python benchmarks/simulated_rollpacker.py --json benchmarks/results/simulated_rollpacker.json

The assumptions are in `scenarios/rollpacker_rewards_*.toml` with their sources. Those about parallel sizes, the rows
below and what is changed were settled before the first full run. Rows are cumulative, as in the paper:

    tail batching alone    only the rollout stage is another (as in simulated_rewards.py)
    reward scheduler       scores while others run, adaptive limits, the judge on the devices of rollout
    planner                the parallel size follows preemptions; a change costs its start, or its wake
    stream trainer         complete groups are trained on devices that instances have left: `rollpacker`

Every figure is the mean over the seeds, with the least and the most. `--tiny` only shows that everything runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import simulated_rewards
from planner_rounds import RoundFacts, RoundRecorder, changes
from simulated_rewards import ALL, BASE, SIZES, TAIL, RewardRow, RewardRun, step_ratio
from simulated_runs import Figures, Range, grid, in_processes, load

from tailrace.sim.result import simulate
from tailrace.sim.scenario import Scenario

STEPS, TINY_STEPS = 15, 2
"""Three periods of four short rounds and a long one. The paper has 40 steps."""
PLANNER, WHOLE = "planner", "rollpacker"
OVERLAP, OVERLAP_SHARED = "stage-overlap", "stage-overlap-shared"
ARMS = (BASE, TAIL, ALL, PLANNER, WHOLE, OVERLAP, OVERLAP_SHARED)
PAPER = {
    "tail batching alone": (1.30, 1.48, 2.21),
    "reward scheduler": (2.01, 1.99, 2.48),
    "planner": (2.01, 2.02, 2.52),
    "stream trainer": (2.03, 2.22, 2.56),
    "over stage-overlap": (1.14, 1.68, 2.24),
}


def _parallel(scenario: Scenario, **changed: Any) -> Scenario:
    assert scenario.engine.parallel is not None
    parallel = scenario.engine.parallel.model_copy(update=changed)
    return scenario.model_copy(update={"engine": scenario.engine.model_copy(update={"parallel": parallel})})


def _thinking(scenario: Scenario) -> Scenario:
    """Lengths of a model that thinks, with the same cap."""
    entry = next(each for each in grid().long_tailed if each.name == "thinking")
    return scenario.with_lengths(entry, scenario.lengths.max_response_length)


CHANGES: dict[str, Callable[[Scenario], Scenario]] = {
    "lengths of a thinking model": _thinking,
    "instances end instead of being parked": lambda s: _parallel(s, parks=False),
    "the judge takes no KV cache": simulated_rewards.CHANGES["the judge takes no KV cache"],
}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    figures: Figures
    rounds: tuple[RoundFacts, ...]


def simulated(run: RewardRun) -> Outcome:
    scenario = load(f"rollpacker_rewards_{run.size.replace('/', '_').lower()}").with_steps(run.steps)
    scenario, recorder = scenario.with_seed(run.seed), RoundRecorder()
    result = simulate(CHANGES[run.change](scenario) if run.change else scenario, run.schedule, record=recorder.feed)
    if not result.is_complete:
        raise RuntimeError(f"{run} did not come to its end: {result.reason}")
    return Outcome(figures=result.figures, rounds=tuple(recorder.rounds))


def _rows_of(number: int, size: str) -> list[RewardRow]:
    def row(name: str, of: str, over: str, paper: str = "") -> RewardRow:
        bounds = (PAPER[paper][number],) * 2 if paper else None
        return RewardRow(name=name, size=size, paper=bounds, figure=step_ratio(of, over), schedules=(of, over))

    alone = replace(row("tail batching alone", TAIL, BASE, "tail batching alone"), figure=simulated_rewards.alone)
    before = PAPER["planner"][number] / PAPER["reward scheduler"][number]
    streamed = PAPER["stream trainer"][number] / PAPER["planner"][number]
    return [
        alone,
        row("reward scheduler", ALL, BASE, "reward scheduler"),
        row("planner", PLANNER, BASE, "planner"),
        row("stream trainer", WHOLE, BASE, "stream trainer"),
        replace(row("planner: times", PLANNER, ALL), paper=(before, before)),
        replace(row("stream trainer: times", WHOLE, PLANNER), paper=(streamed, streamed)),
        row("over stage-overlap", WHOLE, OVERLAP, "over stage-overlap"),
        row("over stage-overlap with the reward scheduler", WHOLE, OVERLAP_SHARED),
    ]


ROWS = tuple(row for number, size in enumerate(SIZES) for row in _rows_of(number, size))
CHANGED = tuple(("planner: times", "32B/32k", change) for change in CHANGES)
"""(row, size, what is changed in its runs)."""


def changed_rows() -> list[RewardRow]:
    by_name = {(row.name, row.size): row for row in ROWS}
    return [replace(by_name[name, size], change=change, paper=None) for name, size, change in CHANGED]


def run_all(rows: Sequence[RewardRow], *, seeds: int, jobs: int, steps: int) -> dict[RewardRun, Outcome]:
    wanted = list(dict.fromkeys(run for row in rows for seed in range(seeds) for run in row.runs(seed).values()))
    return in_processes(simulated, wanted, [replace(run, steps=steps) for run in wanted], jobs=jobs)


def arm(size: str, name: str, change: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the seconds of a step under a schedule, and what the planner did."""
    preempted: dict[bool, list[float]] = {}
    for is_long in (False, True):
        kinds = [[each.num_preemptions for each in outcome.rounds if each.is_long is is_long] for outcome in outcomes]
        preempted[is_long] = [sum(kind) / len(kind) for kind in kinds if kind] or [0.0]
    found: dict[str, Any] = {"size": size, "schedule": name, "change": change}
    found["step_s"] = Range.over([each.figures.seconds_per_step for each in outcomes]).to_dict()
    found["preemptions_short"] = Range.over(preempted[False]).to_dict()
    found["preemptions_long"] = Range.over(preempted[True]).to_dict()
    if name in (PLANNER, WHOLE):
        found["changes_short"] = [changes(each.rounds, is_long=False) for each in outcomes]
        found["changes_long"] = [changes(each.rounds, is_long=True) for each in outcomes]
    return found


def made(rows: Sequence[RewardRow], found: Mapping[RewardRun, Outcome], seeds: int) -> dict[str, Any]:
    figures = {run: outcome.figures for run, outcome in found.items()}
    entries = [simulated_rewards.entry(row, row.over_seeds(figures, seeds)) for row in rows]
    arms: dict[tuple[str, str, str], list[Outcome]] = {}
    for run, outcome in found.items():
        arms.setdefault((run.size, run.schedule, run.change), []).append(outcome)
    return {"rows": entries, "arms": [arm(*key, outcomes) for key, outcomes in arms.items()]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="simulations at the same time")
    parser.add_argument("--seeds", type=int, default=5, help="sets of lengths")
    parser.add_argument("--tiny", action="store_true", help="two steps each, to see that it runs")
    options = parser.parse_args()
    began, steps = time.monotonic(), TINY_STEPS if options.tiny else STEPS
    rows = [*ROWS, *changed_rows()]
    result = made(rows, run_all(rows, seeds=options.seeds, jobs=options.jobs, steps=steps), options.seeds)
    print("\n".join(simulated_rewards.lines(result["rows"])))
    for each in result["arms"]:
        print(each)
    if options.json:
        settings = {"seeds": options.seeds, "steps": steps, "is_tiny": options.tiny}
        took = round(time.monotonic() - began)
        result = {"settings": settings} | result | {"seconds": took, "jobs": options.jobs}
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
