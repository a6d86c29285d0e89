"""RollPacker's parallelism planner in virtual time beside section 6.4 of the paper, with the cost of each change.

    python benchmarks/simulated_planner.py --json benchmarks/results/simulated_planner.json

The assumptions are those of `scenarios/rollpacker_ramp_14b.toml` and `rollpacker_planner_14b_32k.toml`, with their
sources. They, the settings below and what is changed were settled before the first full run.

    ramp, 2k     responses grow from 8k to 32k by 2k tokens per step (figure 13a), with tail batching
    ramp, 1k     by 1k, as the text of the earlier version of the paper says
    ramp, sync   by 2k, without tail batching: all rounds are of one kind
    32k          at most 32k tokens, from size 2 (figures 13b and c)

The first has the schedule at every fixed size, the others at some. The planner works with instances that are parked;
with instances that end, so that each change is a fresh start; and with changes whose price does not count
(`parallel_horizon = "any"`). ``forecast`` is this project's own strategy, with parked instances; it was added after the
first results. Every figure is the mean over the seeds, with the least and the most. `--tiny` only shows
that everything runs.
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

from planner_rounds import RoundFacts, RoundRecorder, changes
from simulated_runs import Figures, Range, in_processes, load

from tailrace.policies.strategies import ParallelSizes
from tailrace.sim.result import simulate
from tailrace.sim.scenario import Scenario
from tailrace.sim.scenario_sections import VariantSection

TINY_STEPS = 3
RAMP, LONG = "rollpacker_ramp_14b", "rollpacker_planner_14b_32k"
PARKED, FRESH, FREE, FREE_FRESH = "parked", "fresh starts", "free", "free, fresh starts"
FORECAST = "forecast"
PLANNERS = (PARKED, FRESH, FREE, FREE_FRESH, FORECAST)
SIZES = (1, 2, 4)
FIXED = tuple(f"size {size}" for size in SIZES)
MAIN, SYNC = "ramp, 2k", "ramp, sync"


@dataclass(frozen=True, kw_only=True)
class Setting:
    scenario: str
    preset: str
    initial: int
    steps: int
    per_step: int | None = None
    """Growth of the token budget, if not the scenario's."""
    schedules: tuple[str, ...] = (*FIXED, *PLANNERS)


SETTINGS = {
    MAIN: Setting(scenario=RAMP, preset="tail-batching", initial=1, steps=13),
    "ramp, 1k": Setting(
        scenario=RAMP,
        preset="tail-batching",
        initial=1,
        steps=25,
        per_step=1024,
        schedules=("size 1", PARKED, FORECAST),
    ),
    SYNC: Setting(
        scenario=RAMP, preset="sync", initial=1, steps=13, schedules=("size 1", "size 4", PARKED, FRESH, FORECAST)
    ),
    "32k": Setting(
        scenario=LONG,
        preset="tail-batching",
        initial=2,
        steps=20,
        schedules=("size 2", "size 4", PARKED, FRESH, FORECAST),
    ),
}
PAPER = {MAIN: "1.9 times as fast as size 1; size 2 from step 3, 4 from step 8",
         "ramp, 1k": "as with 2k", SYNC: "as with 2k",
         "32k": "preemptions of short rounds -13.8 %, short rounds 1.11 to 1.28 times as fast"}  # fmt: skip


def _parallel(scenario: Scenario, **changed: Any) -> Scenario:
    assert scenario.engine.parallel is not None
    parallel = scenario.engine.parallel.model_copy(update=changed)
    return scenario.model_copy(update={"engine": scenario.engine.model_copy(update={"parallel": parallel})})


def _communication(scenario: Scenario, factor: float) -> Scenario:
    known = scenario.engine.parallel
    assert known is not None
    assert scenario.engine.devices_per_instance == 1
    names = ("reduce_s", "reduce_row_s", "reduce_token_s")
    return _parallel(scenario, **{name: factor * getattr(known, name) for name in names})


def _memory(scenario: Scenario, share: float) -> Scenario:
    """This share of a device for weights and KV cache, in place of 60 %."""
    engine = scenario.engine
    more = round((share - 0.6) * 80e9 * engine.devices_per_instance / 196608)
    changed = {"kv_capacity": engine.kv_capacity + more}
    return scenario.model_copy(update={"engine": engine.model_copy(update=changed)})


def _twice_as_long(scenario: Scenario) -> Scenario:
    lengths = scenario.lengths.model_copy(update={"median": 2 * scenario.lengths.median})
    return scenario.model_copy(update={"lengths": lengths})


def _starts(scenario: Scenario, seconds: float) -> Scenario:
    return _parallel(scenario, start_s=(seconds,) * len(SIZES))


CHANGES: dict[str, Callable[[Scenario], Scenario]] = {
    "communication costs three times as much": lambda s: _communication(s, 3.0),
    "50 % of a device for weights and KV cache": lambda s: _memory(s, 0.5),
    "90 % of a device for weights and KV cache": lambda s: _memory(s, 0.9),
    "starts take 180 s": lambda s: _starts(s, 180.0),
}
AFTERWARDS: dict[str, Callable[[Scenario], Scenario]] = {"responses twice as long": _twice_as_long}
"""Chosen after the first results, to see when preemptions begin."""


@dataclass(frozen=True, kw_only=True)
class PlannerRun:
    setting: str
    schedule: str
    """A planner, or "size" and a fixed size."""
    seed: int
    change: str = ""
    steps: int = 0
    """0: those of the setting."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    figures: Figures
    rounds: tuple[RoundFacts, ...]

    def of_kind(self, *, is_long: bool) -> list[RoundFacts]:
        return [each for each in self.rounds if each.is_long is is_long]


def simulated(run: PlannerRun) -> Outcome:
    setting = SETTINGS[run.setting]
    scenario = load(setting.scenario).with_steps(run.steps or setting.steps).with_seed(run.seed)
    if setting.per_step is not None:
        assert scenario.lengths.ramp is not None
        ramp = scenario.lengths.ramp.model_copy(update={"per_step": setting.per_step})
        scenario = scenario.model_copy(update={"lengths": scenario.lengths.model_copy(update={"ramp": ramp})})
    if run.change:
        scenario = (CHANGES | AFTERWARDS)[run.change](scenario)
    horizon: Any = "any" if run.schedule.startswith(FREE) else 50
    if run.schedule in PLANNERS:
        strategy = ParallelSizes.FORECAST if run.schedule == FORECAST else ParallelSizes.PREEMPTIONS
        variant = VariantSection(preset=setting.preset, parallelism=strategy, parallel_horizon=horizon)
        scenario = _parallel(scenario, parks=FRESH not in run.schedule)
    else:
        variant, scenario = VariantSection(preset=setting.preset), scenario.at_size(int(run.schedule.split()[1]))
    schedule = scenario.schedule.model_copy(update={"variants": {"chosen": variant}})
    recorder = RoundRecorder()
    result = simulate(scenario.model_copy(update={"schedule": schedule}), "chosen", record=recorder.feed)
    if not result.is_complete:
        raise RuntimeError(f"{run} did not come to its end: {result.reason}")
    return Outcome(figures=result.figures, rounds=tuple(recorder.rounds))


def runs(seeds: int) -> list[PlannerRun]:
    plain = [(name, schedule, "") for name, each in SETTINGS.items() for schedule in each.schedules]
    changed = [(MAIN, schedule, change) for change in CHANGES for schedule in ("size 1", PARKED)]
    changed += [
        (name, schedule, change) for name in (MAIN, SYNC) for change in AFTERWARDS for schedule in ("size 1", PARKED)
    ]
    return [
        PlannerRun(setting=setting, schedule=schedule, seed=seed, change=change)
        for setting, schedule, change in (*plain, *changed)
        for seed in range(seeds)
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


FIGURES: dict[str, Callable[[Outcome], float]] = {
    "step_s": lambda o: o.figures.seconds_per_step,
    "round_s": lambda o: _mean([each.seconds for each in o.rounds]),
    "short_round_s": lambda o: _mean([each.seconds for each in o.of_kind(is_long=False)]),
    "long_round_s": lambda o: _mean([each.seconds for each in o.of_kind(is_long=True)]),
    "rollout_s": lambda o: _mean([each.rollout_s for each in o.rounds]),
    "preemptions_short": lambda o: _mean([each.num_preemptions for each in o.of_kind(is_long=False)]),
    "preemptions_long": lambda o: _mean([each.num_preemptions for each in o.of_kind(is_long=True)]),
}
"""Means over the rounds of a run."""
OVER = {"speed_up": "step_s", "rounds_speed_up": "round_s", "short_rounds_speed_up": "short_round_s",
        "long_rounds_speed_up": "long_round_s"}  # fmt: skip
"""Figure of the size with which the setting starts, over that of the schedule."""


def row(setting: str, schedule: str, change: str, found: Mapping[PlannerRun, Outcome], seeds: int) -> dict[str, Any]:
    def of(name: str) -> list[Outcome]:
        return [found[PlannerRun(setting=setting, schedule=name, seed=seed, change=change)] for seed in range(seeds)]

    ours, base = of(schedule), of(f"size {SETTINGS[setting].initial}")
    result: dict[str, Any] = {"setting": setting, "schedule": schedule, "change": change}
    result |= {name: Range.over([figure(each) for each in ours]).to_dict() for name, figure in FIGURES.items()}
    for name, of_name in OVER.items():
        figure = FIGURES[of_name]
        ratios = [figure(before) / max(figure(after), 1e-9) for before, after in zip(base, ours, strict=True)]
        result[name] = Range.over(ratios).to_dict()
    if schedule in PLANNERS:
        result["changes_short"] = [changes(each.rounds, is_long=False) for each in ours]
        result["changes_long"] = [changes(each.rounds, is_long=True) for each in ours]
    return result


def rows(found: Mapping[PlannerRun, Outcome], seeds: int) -> list[dict[str, Any]]:
    kinds = dict.fromkeys((run.setting, run.schedule, run.change) for run in found)
    return [row(*kind, found, seeds) for kind in kinds]


def first_seed(found: Mapping[PlannerRun, Outcome]) -> dict[str, list[list[Any]]]:
    """Return every round of the first seed: kind, size, seconds, preemptions."""
    return {
        f"{run.setting} | {run.schedule}": [
            ["long" if each.is_long else "short", each.size, round(each.seconds, 1), each.num_preemptions]
            for each in outcome.rounds
        ]
        for run, outcome in found.items()
        if run.seed == 0 and not run.change
    }


def line(entry: dict[str, Any]) -> str:
    shown = "  ".join(
        f"{name} {entry[name]['mean']:.4g} ({entry[name]['min']:.4g}..{entry[name]['max']:.4g})"
        for name in ("step_s", "speed_up", "short_rounds_speed_up", "preemptions_short", "preemptions_long")
    )
    found = f"  short {entry['changes_short']} long {entry['changes_long']}" if "changes_short" in entry else ""
    return f"{entry['setting']:10} {entry['schedule']:18} [{entry['change']}] {shown}{found}"


def run_all(wanted: Sequence[PlannerRun], *, jobs: int, steps: int) -> dict[PlannerRun, Outcome]:
    return in_processes(simulated, wanted, [replace(run, steps=steps) for run in wanted], jobs=jobs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="simulations at the same time")
    parser.add_argument("--seeds", type=int, default=5, help="sets of lengths")
    parser.add_argument("--tiny", action="store_true", help="a few steps each, to see that it runs")
    options = parser.parse_args()
    began, steps = time.monotonic(), TINY_STEPS if options.tiny else 0
    found = run_all(runs(options.seeds), jobs=options.jobs, steps=steps)
    entries = rows(found, options.seeds)
    print("\n".join(line(entry) for entry in entries))
    if options.json:
        settings = {
            "seeds": options.seeds,
            "steps": {name: steps or each.steps for name, each in SETTINGS.items()},
            "is_tiny": options.tiny,
        }
        result = {"settings": settings, "paper": PAPER, "rows": entries, "rounds_of_the_first_seed": first_seed(found)}
        took = round(time.monotonic() - began)
        options.json.write_text(json.dumps(result | {"seconds": took, "jobs": options.jobs}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
