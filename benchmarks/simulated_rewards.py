"""The reward row of RollPacker's Table 2 in virtual time, split into its parts, beside the paper's figures.

    python benchmarks/simulated_rewards.py --json benchmarks/results/simulated_rewards.json

The assumptions are in `scenarios/rollpacker_rewards_*.toml` with their sources. They, the rows below and what is
changed once were settled before the first simulation; nothing is tuned to the outcome. The parts are added one by one:

    tail batching alone         a quarter of the devices is reserved for the judge, limits of test cases are fixed, and
                                the rewards take as long as in the baseline, after the rollout stage
    scores while others run     seconds of a step: before over after
    adaptive limits             likewise
    judge on rollout's devices  likewise; nothing is reserved any more
    all of them                 the product: seconds of a step of the baseline over that with all parts

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

import simulated_papers
from simulated_runs import Figures, Range, in_processes, load, rollout_s, speed_up

from tailrace.sim.result import simulate
from tailrace.sim.scenario import Scenario

STEPS, TINY_STEPS = 20, 2
SIZES = ("7B/8k", "14B/16k", "32B/32k")
PAPER: dict[str, tuple[float, float, float]] = {
    "alone": (1.30, 1.48, 2.21),
    "streaming": (1.48, 1.35, 1.18),
    "all": (2.01, 1.99, 2.48),
}
BASE, SYNC, TAIL = "sync-barrier", "sync-streamed", "tail-batching"
LIMITS, ALL, BASE_SHARED = "adaptive-limits", "reward-scheduler", "sync-barrier-shared"
ARMS = (BASE, SYNC, TAIL, LIMITS, ALL)
By = Mapping[str, Figures]


@dataclass(frozen=True, kw_only=True)
class RewardRun:
    size: str
    schedule: str
    seed: int
    change: str = ""
    """Name of what is changed in the scenario; empty: nothing."""
    steps: int = STEPS


def _reward(scenario: Scenario, **changes: Any) -> Scenario:
    return scenario.model_copy(update={"reward": scenario.reward.model_copy(update=changes)})


def _tests(scenario: Scenario, **changes: Any) -> Scenario:
    assert scenario.reward.code_tests is not None
    return _reward(scenario, code_tests=scenario.reward.code_tests.model_copy(update=changes))


def _judge(scenario: Scenario, **changes: Any) -> Scenario:
    assert scenario.reward.judge is not None
    return _reward(scenario, judge=scenario.reward.judge.model_copy(update=changes))


def _prompts(scenario: Scenario, count: int) -> Scenario:
    lengths = scenario.lengths.model_copy(update={"num_prompts": count})
    return scenario.model_copy(update={"lengths": lengths})


def _short(scenario: Scenario) -> Scenario:
    lengths = scenario.lengths.model_copy(update={"max_response_length": 1024})
    return scenario.model_copy(update={"lengths": lengths})


def _adaptive(scenario: Scenario) -> Scenario:
    return _tests(scenario, timeouts="adaptive")


def _code_alone(scenario: Scenario) -> Scenario:
    return _reward(scenario, kinds=(), judge=None)


def _judge_alone(scenario: Scenario) -> Scenario:
    return _judge(_reward(scenario, kinds=(), code_tests=None), placement="shared")


CHANGES: dict[str, Callable[[Scenario], Scenario]] = {
    "code alone": _code_alone,
    "judge alone": _judge_alone,
    "judge alone, time-slicing": lambda s: _judge(_judge_alone(s), rollout_slowdown=2.0, slowdown=2.0),
    "every problem seen in an earlier pass": lambda s: _prompts(s, 640),
    "code alone, every problem seen in an earlier pass": lambda s: _prompts(_code_alone(s), 640),
    "code alone, adaptive limits": lambda s: _adaptive(_code_alone(s)),
    "code alone, all problems seen": lambda s: _prompts(_code_alone(s), 640),
    "code alone, adaptive limits, all problems seen": lambda s: _adaptive(_prompts(_code_alone(s), 640)),
    "code alone, short": lambda s: _short(_code_alone(s)),
    "code alone, short, adaptive limits": lambda s: _short(_adaptive(_code_alone(s))),
    "code alone, short, all problems seen": lambda s: _short(_prompts(_code_alone(s), 640)),
    "code alone, short, adaptive limits, all problems seen": lambda s: _short(_adaptive(_prompts(_code_alone(s), 640))),
    "code alone, every case cut at 2 s": lambda s: _tests(_code_alone(s), case_timeout_s=2.0),
    "code alone, short, every case cut at 2 s": lambda s: _short(_tests(_code_alone(s), case_timeout_s=2.0)),
    "code alone, all problems seen, no probes": lambda s: _tests(
        _prompts(_code_alone(s), 640), timeout_probe_share=0.0
    ),
    "no endless programs": lambda s: _tests(s, endless_share=0.0),
    "half as many endless programs": lambda s: _tests(s, endless_share=0.025),
    "cases four times as long": lambda s: _tests(s, median_s=0.5),
    "64 programs at the same time": lambda s: _tests(s, workers=64),
    "training keeps all devices": lambda s: _judge(s, takes_from_training=False),
    "the judge takes no KV cache": lambda s: _judge(s, kv_tokens=0),
    "no interference of judge and rollout": lambda s: _judge(s, rollout_slowdown=1.0, slowdown=1.0),
    "time-slicing in place of MPS": lambda s: _judge(s, rollout_slowdown=2.0, slowdown=2.0),
    "copies of layers do not overlap": lambda s: _judge(s, copy_s=0.0, pass_s=0.05 + 0.152),
    "the judge is four times slower": lambda s: _judge(s, token_s=4 * 6.8e-5),
}
"""Time-slicing: two processes that both compute get half of the time each."""


def alone(by: By) -> float:
    """Only the rollout stage is another; rewards and training follow it as in the baseline."""
    return speed_up_from(_alone_s(by), by[BASE])


def _alone_s(by: By) -> float:
    return by[BASE].seconds_per_step - rollout_s(by[BASE]) + rollout_s(by[TAIL])


def speed_up_from(seconds: float, baseline: Figures) -> float:
    return baseline.seconds_per_step / seconds


def streaming(by: By) -> float:
    return _alone_s(by) / by[TAIL].seconds_per_step


def step_ratio(of: str, over: str) -> Callable[[By], float]:
    return lambda by: speed_up(by[of], by[over])


def without_training_ratio(of: str, over: str) -> Callable[[By], float]:
    """Of the seconds of a step in which the trainer takes no step: rollout, rewards that nothing hides, weights."""

    def seconds(figures: Figures) -> float:
        return figures.seconds_per_step * figures.trainer_idle_share

    return lambda by: seconds(by[over]) / seconds(by[of])


@dataclass(frozen=True, kw_only=True)
class RewardRow:
    name: str
    size: str
    paper: tuple[float, float] | None
    figure: Callable[[By], float]
    schedules: tuple[str, ...]
    change: str = ""
    is_bound: bool = False
    """The paper says "up to": nothing above is near."""
    note: str = ""
    """What is changed, where ``change`` does not say."""

    def runs(self, seed: int) -> dict[str, RewardRun]:
        found = {}
        for name in self.schedules:
            schedule, _, change = name.partition("|")
            found[name] = RewardRun(size=self.size, schedule=schedule, seed=seed, change=change or self.change)
        return found

    def over_seeds(self, found: Mapping[RewardRun, Figures], seeds: int) -> list[float]:
        return [self.figure({name: found[run] for name, run in self.runs(seed).items()}) for seed in range(seeds)]


def _rows_of(number: int, size: str) -> list[RewardRow]:
    def paper(name: str) -> tuple[float, float]:
        return (PAPER[name][number], PAPER[name][number])

    return [
        RewardRow(name="tail batching alone", size=size, paper=paper("alone"), figure=alone, schedules=(BASE, TAIL)),
        RewardRow(
            name="scores while others run: times",
            size=size,
            paper=paper("streaming"),
            figure=streaming,
            schedules=(BASE, TAIL),
        ),
        RewardRow(
            name="adaptive limits: times", size=size, paper=None, figure=step_ratio(LIMITS, TAIL),
            schedules=(TAIL, LIMITS),
        ),
        RewardRow(
            name="judge on the devices of rollout: times", size=size, paper=None, figure=step_ratio(ALL, LIMITS),
            schedules=(LIMITS, ALL),
        ),
        RewardRow(
            name="all of them, over the baseline", size=size, paper=paper("all"), figure=step_ratio(ALL, BASE),
            schedules=(BASE, ALL),
        ),
        RewardRow(
            name="scores while others run, without tail batching: times", size=size, paper=paper("streaming"),
            figure=step_ratio(SYNC, BASE), schedules=(BASE, SYNC),
        ),
        RewardRow(
            name="adaptive limits, seconds of a step without training: times", size=size, paper=None,
            figure=without_training_ratio(LIMITS, TAIL), schedules=(TAIL, LIMITS),
        ),
    ]  # fmt: skip


ROWS: tuple[RewardRow, ...] = (
    *(row for number, size in enumerate(SIZES) for row in _rows_of(number, size)),
    RewardRow(
        name="code alone: adaptive limits, seconds of a step without training: times", size="7B/8k", paper=(1.6, 1.6),
        figure=without_training_ratio(LIMITS, TAIL), schedules=(TAIL, LIMITS), change="code alone",
    ),
    RewardRow(
        name="judge alone: MPS in place of time-slicing: times", size="7B/8k", paper=(1.0, 1.25), is_bound=True,
        figure=step_ratio(f"{TAIL}|judge alone", f"{TAIL}|judge alone, time-slicing"),
        schedules=(f"{TAIL}|judge alone", f"{TAIL}|judge alone, time-slicing"),
    ),
)  # fmt: skip

LIMIT_ROWS = ("adaptive limits: times", "adaptive limits, seconds of a step without training: times")
ONCE: tuple[tuple[str, str, str], ...] = (
    *((name, "7B/8k", "every problem seen in an earlier pass") for name in LIMIT_ROWS),
    (
        "code alone: adaptive limits, seconds of a step without training: times",
        "7B/8k",
        "code alone, every problem seen in an earlier pass",
    ),
    *((name, "7B/8k", "no endless programs") for name in ("scores while others run: times", *LIMIT_ROWS)),
    *((name, "7B/8k", "half as many endless programs") for name in ("scores while others run: times", *LIMIT_ROWS)),
    *((name, "7B/8k", "cases four times as long") for name in ("scores while others run: times", *LIMIT_ROWS)),
    *((name, "7B/8k", "64 programs at the same time") for name in ("scores while others run: times", *LIMIT_ROWS)),
    *(
        ("judge on the devices of rollout: times", size, change)
        for size, change in (
            ("7B/8k", "training keeps all devices"),
            ("7B/8k", "no interference of judge and rollout"),
            ("7B/8k", "time-slicing in place of MPS"),
            ("7B/8k", "copies of layers do not overlap"),
            ("7B/8k", "the judge is four times slower"),
            ("32B/32k", "the judge takes no KV cache"),
            ("32B/32k", "training keeps all devices"),
        )
    ),
)
"""(row, size, what is changed in all its runs)."""


def afterwards() -> list[RewardRow]:
    """Chosen after the first results, to see why adaptive limits gain so little: what a round has to wait for.

    Without surplus prompts and responses it waits for every program, and with short responses no rollout hides that.
    One program with the longest limit is enough to hold it up: a probe, or a problem that nobody has solved. Where
    every case is cut at the shortest limit, there is none: this is what limits known beforehand would give."""
    all_wait, seen = "no surplus prompts and responses", "every problem seen in an earlier pass"
    short = f"{all_wait}, at most 1,024 tokens"
    [tail] = [row for row in ROWS if row.change == "code alone"]
    cut = f"{TAIL}|code alone, every case cut at 2 s", f"{TAIL}|code alone"
    probes = f"{LIMITS}|code alone, all problems seen, no probes", f"{TAIL}|code alone, all problems seen"
    return [
        _other(tail, "every case cut at 2 s", cut),
        _other(tail, f"{seen}; no probes", probes),
        _code_without_surplus(all_wait, "code alone", "code alone, adaptive limits"),
        _code_without_surplus(
            f"{all_wait}; {seen}", "code alone, all problems seen", "code alone, adaptive limits, all problems seen"
        ),
        _code_without_surplus(short, "code alone, short", "code alone, short, adaptive limits"),
        _code_without_surplus(
            f"{short}; {seen}",
            "code alone, short, all problems seen",
            "code alone, short, adaptive limits, all problems seen",
        ),
        _code_without_surplus(
            f"{short}; every case cut at 2 s", "code alone, short", "code alone, short, every case cut at 2 s"
        ),
    ]


def _code_without_surplus(note: str, fixed: str, shorter: str) -> RewardRow:
    [row] = [row for row in ROWS if row.change == "code alone"]
    return _other(row, note, (f"{SYNC}|{shorter}", f"{SYNC}|{fixed}"))


def _other(row: RewardRow, note: str, names: tuple[str, str]) -> RewardRow:
    """Return a row of the same name that compares these two in the seconds of a step without training."""
    figure = without_training_ratio(*names)
    return RewardRow(name=row.name, size=row.size, paper=row.paper, figure=figure, schedules=names, note=note)


def varied() -> list[RewardRow]:
    """The rows of ``ONCE``, and the whole row over a baseline that reserves no devices."""
    by_name = {(row.name, row.size): row for row in ROWS}
    rows = [_changed(by_name[name, size], change) for name, size, change in ONCE]
    free = [
        RewardRow(
            name="all of them, over the baseline", size=size, paper=None, figure=step_ratio(ALL, BASE_SHARED),
            schedules=(BASE_SHARED, ALL),
            note="the baseline reserves no devices, its judge computes on those of rollout",
        )
        for size in SIZES
    ]  # fmt: skip
    return [*rows, *free]


def _changed(row: RewardRow, change: str) -> RewardRow:
    return RewardRow(
        name=row.name, size=row.size, paper=row.paper, figure=row.figure, schedules=row.schedules, change=change
    )


def simulated(run: RewardRun) -> Figures:
    name = f"rollpacker_rewards_{run.size.replace('/', '_').lower()}"
    scenario = load(name).with_steps(run.steps).with_seed(run.seed)
    result = simulate(CHANGES[run.change](scenario) if run.change else scenario, run.schedule)
    if not result.is_complete:
        raise RuntimeError(f"{run} did not come to its end: {result.reason}")
    return result.figures


def run_all(rows: Sequence[RewardRow], *, seeds: int, jobs: int, steps: int) -> dict[RewardRun, Figures]:
    """Simulate every run of the rows once; progress goes to stderr."""
    wanted = list(dict.fromkeys(run for row in rows for seed in range(seeds) for run in row.runs(seed).values()))
    return in_processes(simulated, wanted, [replace(run, steps=steps) for run in wanted], jobs=jobs)


def entry(row: RewardRow, figures: Sequence[float]) -> dict[str, Any]:
    ours = Range.over(figures)
    found: dict[str, Any] = {"name": row.name, "size": row.size, "paper": row.paper and list(row.paper)}
    found |= {"simulated": ours.to_dict(), "change": row.change or row.note}
    if row.paper is None:
        return found | {"is_near": None}
    aim, (low, high) = simulated_papers.AIM, row.paper
    is_near = low <= ours.most <= high if row.is_bound else low * (1 - aim) <= ours.mean <= high * (1 + aim)
    return found | {"is_near": is_near}


def step_seconds(found: Mapping[RewardRun, Figures], seeds: int) -> list[dict[str, Any]]:
    """Seconds of a step of every arm, and how they are spent."""
    parts: dict[str, Callable[[Figures], float]] = {
        "step_s": lambda f: f.seconds_per_step,
        "rollout_s": rollout_s,
        "training_s": lambda f: f.seconds_per_step * (1.0 - f.trainer_idle_share),
    }
    rows = []
    for size in SIZES:
        for name in ARMS:
            all_seeds = [found[RewardRun(size=size, schedule=name, seed=seed)] for seed in range(seeds)]
            figures = {part: Range.over([value(each) for each in all_seeds]).to_dict() for part, value in parts.items()}
            rows.append({"size": size, "schedule": name, **figures})
    return rows


def lines(entries: Sequence[dict[str, Any]]) -> list[str]:
    return [
        f"{each['size']:8} {each['name']} [{each['change']}]:"
        f" {simulated_papers.shown_range(each['simulated'])}, paper {simulated_papers.shown_paper(each)}"
        for each in entries
    ]


def made(rows: Sequence[RewardRow], options: argparse.Namespace, *, has_steps: bool) -> dict[str, Any]:
    """Simulate rows; return them with how they were made."""
    began, seeds, steps = time.monotonic(), options.seeds, TINY_STEPS if options.tiny else STEPS
    found = run_all(rows, seeds=seeds, jobs=options.jobs, steps=steps)
    entries = [entry(row, row.over_seeds(found, seeds)) for row in rows]
    print("\n".join(lines(entries)))
    result: dict[str, Any] = {"settings": {"seeds": seeds, "steps": steps, "is_tiny": options.tiny}, "rows": entries}
    if has_steps:
        result["seconds_of_a_step"] = step_seconds(found, seeds)
    return result | {"seconds": round(time.monotonic() - began), "jobs": options.jobs}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result to this file; what is not made anew stays in it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="simulations at the same time")
    parser.add_argument("--seeds", type=int, default=5, help="sets of lengths")
    parser.add_argument("--only", choices=("rows", "changed", "afterwards"), help="only these")
    parser.add_argument("--tiny", action="store_true", help="two steps each, to see that it runs")
    options = parser.parse_args()
    result = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    for name, rows in (("rows", ROWS), ("changed", varied()), ("afterwards", afterwards())):
        if options.only in (None, name):
            result[name] = made(rows, options, has_steps=name == "rows")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
