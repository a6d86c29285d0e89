"""RollPacker's stream trainer in virtual time beside the paper's figures: Tables 3 and 4, and the last row of Table 2.

    python benchmarks/simulated_streaming.py --json benchmarks/results/simulated_streaming.json

The assumptions are those of `scenarios/rollpacker_*.toml`, with their sources; they are older than streamed steps, and
nothing is tuned to the outcome. Rollout and training take turns on the same devices (`colocated`), so a step streams
only on devices that instances have left. In rounds without speculation, as in the paper's Tables 3 and 4:

    without        training begins when the round has ended (`sync`)
    at 20 %        half of the instances leave when 20 % of the batch is complete, and complete groups are trained there
    kv-peak        ... when what is left fits into the KV cache of the others
    once, at 20 %  one piece is trained, and the rest when the round has ended (Table 4)

Then tail batching with streamed long rounds beside tail batching without, and beside `stage-overlap`. Every figure is
the mean over the seeds, with the least and the most. `--tiny` only shows that everything runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simulated_runs import Figures, Range, load

from tailrace.core.schedule import Stream
from tailrace.policies.strategies import Scaling
from tailrace.sim.result import simulate
from tailrace.sim.scenario import Scenario
from tailrace.sim.scenario_sections import VariantSection

STEPS, TINY_STEPS = 20, 2
SIZES = {"7B/8k": "rollpacker_7b_8k", "14B/16k": "rollpacker_14b_16k", "32B/32k": "rollpacker_32b_32k"}
WITHOUT, ADAPTIVE = "sync", "kv-peak"
TABLE_3 = {WITHOUT: 124.2, "at 20 %": 122.7, "at 30 %": 118.2, "at 40 %": 119.8, ADAPTIVE: 115.2}
TABLE_4 = {"once, at 20 %": 128.6, "once, at 30 %": 129.5, "once, at 40 %": 133.8, "once, at 50 %": 132.0}
TAIL, STREAMED = "tail-batching", "tail-batching, streamed"
STREAM_ROW = {"7B/8k": 2.03 / 2.02, "14B/16k": 2.22 / 2.02, "32B/32k": 2.56 / 2.52}
"""Table 2, cumulative: the last row over the one before."""
OVER_OVERLAP = {"7B/8k": 1.14, "14B/16k": 1.68, "32B/32k": 2.24}


def _lent(preset: str, at: float | None = None, stream: Stream = Stream.ALWAYS) -> VariantSection:
    """Streamed, with instances that are lent: at this part of the batch, or by `kv-peak`."""
    if at is None:
        return VariantSection(preset=preset, stream=stream, lending=Scaling.KV_PEAK)
    share = at if stream is Stream.ONCE else None
    return VariantSection(preset=preset, stream=stream, stream_share=share, lending=Scaling.FIXED, lend_at=at)


VARIANTS = {
    ADAPTIVE: _lent("sync"),
    STREAMED: _lent("tail-batching"),
    **{f"at {share} %": _lent("sync", share / 100) for share in (20, 30, 40)},
    **{f"once, at {share} %": _lent("sync", share / 100, Stream.ONCE) for share in (20, 30, 40, 50)},
}


def _trainer(scenario: Scenario, factor: float) -> Scenario:
    token_s = factor * scenario.trainer.token_s
    return scenario.model_copy(update={"trainer": scenario.trainer.model_copy(update={"token_s": token_s})})


def _moves(scenario: Scenario, factor: float) -> Scenario:
    """Prefill of responses that move, and giving memory back and taking it again."""
    engine = scenario.engine
    changed = {name: factor * getattr(engine, name) for name in ("prefill_s", "release_s", "pull_s")}
    return scenario.model_copy(update={"engine": engine.model_copy(update=changed)})


CHANGES: dict[str, Callable[[Scenario], Scenario]] = {
    "training twice as dear": lambda s: _trainer(s, 2.0),
    "training half as dear": lambda s: _trainer(s, 0.5),
    "moving costs nothing": lambda s: _moves(s, 0.0),
    "moving costs five times as much": lambda s: _moves(s, 5.0),
}


@dataclass(frozen=True, kw_only=True)
class StreamRun:
    size: str
    schedule: str
    seed: int
    change: str = ""
    steps: int = STEPS


def simulated(run: StreamRun) -> Figures:
    scenario = load(SIZES[run.size]).with_steps(run.steps).with_seed(run.seed)
    schedule = scenario.schedule.model_copy(update={"variants": {**scenario.schedule.variants, **VARIANTS}})
    scenario = scenario.model_copy(update={"schedule": schedule})
    if run.change:
        scenario = CHANGES[run.change](scenario)
    result = simulate(scenario, run.schedule)
    if not result.is_complete:
        raise RuntimeError(f"{run} did not come to its end: {result.reason}")
    return result.figures


@dataclass(frozen=True, kw_only=True)
class Row:
    """Seconds of a step under ``before`` over those under ``after``, or the seconds themselves without ``before``."""

    table: str
    size: str
    after: str
    before: str = ""
    paper: float | None = None
    change: str = ""

    def runs(self, seed: int) -> list[StreamRun]:
        names = [name for name in (self.after, self.before) if name]
        return [StreamRun(size=self.size, schedule=name, seed=seed, change=self.change) for name in names]

    def value(self, found: Mapping[StreamRun, Figures], seed: int) -> float:
        seconds = [found[run].seconds_per_step for run in self.runs(seed)]
        return seconds[1] / seconds[0] if self.before else seconds[0]


def rows() -> list[Row]:
    plain = [
        Row(table=table, size="7B/8k", after=name, paper=seconds)
        for table, papers in (("3", TABLE_3), ("4", TABLE_4))
        for name, seconds in papers.items()
    ]
    gains = [
        Row(table=table, size="7B/8k", after=name, before=WITHOUT, paper=TABLE_3[WITHOUT] / seconds)
        for table, papers in (("3, gain", TABLE_3), ("4, gain", TABLE_4))
        for name, seconds in papers.items()
        if name != WITHOUT
    ]
    streamed = [
        Row(table=table, size=size, after=STREAMED, before=before, paper=paper[size])
        for table, before, paper in (("2", TAIL, STREAM_ROW), ("over stage-overlap", ADAPTIVE, OVER_OVERLAP))
        for size in SIZES
    ]
    changed = [
        Row(table="3, gain", size="7B/8k", after=name, before=WITHOUT, change=change)
        for change in CHANGES
        for name in ("at 40 %", ADAPTIVE)
    ]
    return [*plain, *gains, *streamed, *changed]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="simulations at the same time")
    parser.add_argument("--seeds", type=int, default=5, help="sets of lengths")
    parser.add_argument("--tiny", action="store_true", help="two steps each, to see that it runs")
    options = parser.parse_args()
    began, steps = time.monotonic(), TINY_STEPS if options.tiny else STEPS
    wanted = list(dict.fromkeys(run for row in rows() for seed in range(options.seeds) for run in row.runs(seed)))
    found: dict[StreamRun, Figures] = {}
    with ProcessPoolExecutor(options.jobs) as pool:
        for run, figures in zip(
            wanted, pool.map(simulated, [replace(run, steps=steps) for run in wanted]), strict=True
        ):
            found[run] = figures
            if len(found) % 20 == 0 or len(found) == len(wanted):
                took = time.monotonic() - began
                print(f"{len(found)} of {len(wanted)} simulations, {took:.0f} s", file=sys.stderr, flush=True)
    entries: list[dict[str, Any]] = [
        {
            "table": row.table,
            "name": row.after,
            "size": row.size,
            "change": row.change,
            "paper": None if row.paper is None else round(row.paper, 3),
            "simulated": Range.over([row.value(found, seed) for seed in range(options.seeds)]).to_dict(),
        }
        for row in rows()
    ]
    settings = {"seeds": options.seeds, "steps": steps, "is_tiny": options.tiny}
    for each in entries:
        print(each)
    if options.json:
        options.json.write_text(json.dumps({"settings": settings, "rows": entries}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
