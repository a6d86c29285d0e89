"""The papers' settings: what they report, what the simulator finds, and what a difference rests on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from simulated_runs import Figures, Run, rollout_s, speed_up

AIM = 0.2
"""Relative difference to a paper's figure that is aimed at."""
SCALES = (1, 2, 4)
STEPS, SCALED_STEPS = 20, 10


@dataclass(frozen=True, kw_only=True)
class Row:
    name: str
    paper: tuple[float, float]
    """Lowest and highest figure the paper gives."""
    is_bound: bool = False
    """The paper says "at most": nothing above is near."""
    figure: Callable[[Mapping[str, Figures]], float]
    scenario: str
    schedules: tuple[str, ...]
    rests_on: str
    """The assumption that drives the figure."""


def _speed_up(of: str, over: str) -> Callable[[Mapping[str, Figures]], float]:
    return lambda by: speed_up(by[of], by[over])


def _throughput(of: str, over: str) -> Callable[[Mapping[str, Figures]], float]:
    return lambda by: by[of].rollout_tokens_per_s / by[over].rollout_tokens_per_s


def _rollout_stage_alone(by: Mapping[str, Figures]) -> float:
    """Only the rollout stage is another; rewards and training follow it as in the baseline (RollPacker, table 2)."""
    baseline = by["sync-barrier"].seconds_per_step
    return baseline / (baseline - rollout_s(by["sync-barrier"]) + rollout_s(by["tail-batching"]))


def _tail_batching(size: str, alone: float, streamed: float) -> list[Row]:
    common: dict[str, Any] = {
        "scenario": f"rollpacker_{size.replace('/', '_').lower()}",
        "schedules": ("sync-barrier", "tail-batching"),
        "rests_on": "the spread of lengths, one for all sizes, and the seconds of training per token",
    }
    return [
        Row(name=f"tail batching alone, {size}", paper=(alone, alone), figure=_rollout_stage_alone, **common),
        Row(
            name=f"tail batching that scores while others generate, {size}",
            paper=(streamed, streamed),
            figure=_speed_up("tail-batching", "sync-barrier"),
            **common,
        ),
    ]


GRPO, DAPO = "april_8b_grpo", "april_8b_dapo"
ROWS = (
    *_tail_batching("7B/8k", 1.30, 2.01),
    *_tail_batching("14B/16k", 1.48, 1.99),
    *_tail_batching("32B/32k", 2.21, 2.48),
    Row(
        name="tail batching inside one-step, 7B/8k: over one-step",
        paper=(1.71, 1.71),
        figure=_speed_up("one-step-tail-batching", "one-step"),
        scenario="rollpacker_7b_8k_one_step",
        schedules=("one-step", "one-step-tail-batching"),
        rests_on="the paper's arm has its other techniques on as well",
    ),
    Row(
        name="active partial, GRPO: rollout throughput over sync",
        paper=(1.26, 1.44),
        figure=_throughput("active-partial", "sync"),
        scenario=GRPO,
        schedules=("sync", "active-partial"),
        rests_on="how little a decode step slows down with twice the responses: 70 % of the peak bandwidth is assumed",
    ),
    Row(
        name="active partial, GRPO: share of carried tokens",
        paper=(0.40, 0.40),
        figure=lambda by: by["active-partial"].carried_share,
        scenario=GRPO,
        schedules=("active-partial",),
        rests_on="every token written before the last update counts, also those of groups that were complete and"
        " waited; with a median of 4,000 tokens most groups of a batch began one step earlier",
    ),
    Row(
        name="active partial, GRPO: most versions in one response (paper: at most 5)",
        paper=(1, 5),
        is_bound=True,
        figure=lambda by: by["active-partial"].versions_max,
        scenario=GRPO,
        schedules=("active-partial",),
        rests_on="the cap over the tokens of one step",
    ),
    Row(
        name="active partial, DAPO: rollout throughput over waves",
        paper=(1.08, 1.10),
        figure=_throughput("active-partial", "sync-waves"),
        scenario=DAPO,
        schedules=("sync-waves", "active-partial"),
        rests_on="the paper's baseline replaces a filtered group by a wave of 32; here two waves begin together",
    ),
    Row(
        name="active partial, DAPO: rollout throughput over sync that refills one group at a time",
        paper=(1.08, 1.10),
        figure=_throughput("active-partial", "sync"),
        scenario=DAPO,
        schedules=("sync", "active-partial"),
        rests_on="not the paper's baseline: refilling one by one leaves the devices nearly empty",
    ),
)
SCALED = ("sync-barrier", "tail-batching")
SCALED_SCENARIO = "rollpacker_14b_16k"


def runs() -> list[Run]:
    found = [_run(row, schedule) for row in ROWS for schedule in row.schedules]
    return [*found, *(_scaled(schedule, scale) for schedule in SCALED for scale in SCALES)]


def _run(row: Row, schedule: str) -> Run:
    return Run(scenario=row.scenario, schedule=schedule, steps=STEPS)


def _scaled(schedule: str, scale: int) -> Run:
    return Run(scenario=SCALED_SCENARIO, schedule=schedule, steps=SCALED_STEPS, scale=scale)


def table(found: Mapping[Run, Figures]) -> list[dict[str, Any]]:
    rows = [_row(row, row.figure({name: found[_run(row, name)] for name in row.schedules})) for row in ROWS]
    for scale in SCALES:
        by = {name: found[_scaled(name, scale)] for name in SCALED}
        devices, batch = 32 * scale, 128 * scale
        rows.append(
            _entry(
                f"14B/16k, batch {batch} on {devices} devices: tail batching over rewards after rollout",
                (2.2, 2.2),
                speed_up(by["tail-batching"], by["sync-barrier"]),
                "the paper's arm has its other techniques on as well",
            )
        )
        if scale > 1:
            before = found[_scaled("tail-batching", scale // 2)]
            growth = 2 * speed_up(by["tail-batching"], before)
            name = f"14B/16k, batch {batch} on {devices} devices: samples/s over half of both"
            rows.append(_entry(name, (1.5, 1.5), growth, "training scales without loss here"))
    return rows


def _row(row: Row, figure: float) -> dict[str, Any]:
    return _entry(row.name, row.paper, figure, row.rests_on, is_bound=row.is_bound)


def _entry(
    name: str, paper: tuple[float, float], figure: float, rests_on: str, *, is_bound: bool = False
) -> dict[str, Any]:
    low, high = paper
    is_near = low <= figure <= high if is_bound else low * (1 - AIM) <= figure <= high * (1 + AIM)
    entry: dict[str, Any] = {"name": name, "paper": list(paper), "simulated": round(figure, 3), "is_near": is_near}
    off = "outside the paper's bound" if is_bound else f"more than {AIM:.0%} off"
    return entry if is_near else entry | {"off": off, "rests_on": rests_on}


def lines(rows: list[dict[str, Any]]) -> list[str]:
    width = max(len(row["name"]) for row in rows)
    found = [f"{'':{width}}  {'paper':>11}  simulated"]
    for row in rows:
        low, high = row["paper"]
        paper = f"{low:.2f}" if low == high else f"{low:.2f}..{high:.2f}"
        note = "" if row["is_near"] else f"   {row['off']}; rests on: {row['rests_on']}"
        found.append(f"{row['name']:{width}}  {paper:>11}  {row['simulated']:>9.2f}{note}")
    return found
