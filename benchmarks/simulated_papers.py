"""The papers' settings: what they report, what the simulator finds over several seeds, and what explains a difference.

A seed draws other lengths. Single long responses decide much: one seed alone moves a figure by some percent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulated_runs import Figures, Range, Run, rollout_s, speed_up

AIM = 0.2
"""Relative difference to a paper's figure that is aimed at."""
SCALES = (1, 2, 4)
STEPS, SCALED_STEPS = 20, 10


@dataclass(frozen=True, kw_only=True)
class Row:
    name: str
    paper: tuple[float, float] | None
    """Lowest and highest figure the paper gives; None: it gives none."""
    is_bound: bool = False
    """The paper says "at most": nothing above is near."""
    figure: Callable[[Mapping[str, Figures]], float]
    scenario: str
    schedules: tuple[str, ...]
    remark: str
    """What is known of a difference to the paper."""


def _speed_up(of: str, over: str) -> Callable[[Mapping[str, Figures]], float]:
    return lambda by: speed_up(by[of], by[over])


def _throughput(of: str, over: str) -> Callable[[Mapping[str, Figures]], float]:
    return lambda by: by[of].rollout_tokens_per_s / by[over].rollout_tokens_per_s


def _rollout_stage_alone(by: Mapping[str, Figures]) -> float:
    """Only the rollout stage is another; rewards and training follow it as in the baseline (RollPacker, table 2)."""
    baseline = by["sync-barrier"].seconds_per_step
    return baseline / (baseline - rollout_s(by["sync-barrier"]) + rollout_s(by["tail-batching"]))


def _trained(figures: Figures) -> float:
    """Tokens trained per step."""
    return figures.tokens_trained / figures.num_steps


def _tail_batching(size: str, alone: float, streamed: float) -> list[Row]:
    common: dict[str, Any] = {
        "scenario": f"rollpacker_{size.replace('/', '_').lower()}",
        "schedules": ("sync-barrier", "tail-batching"),
        "remark": "rests on the spread of lengths, one for all sizes, and the seconds of training per token",
    }
    return [
        Row(name=f"tail batching alone, {size}", paper=(alone, alone), figure=_rollout_stage_alone, **common),
        Row(
            name=f"tail batching, {size}: tokens trained per step, over the baseline",
            paper=None,
            figure=lambda by: _trained(by["tail-batching"]) / _trained(by["sync-barrier"]),
            **common | {"remark": "the responses that end first are trained, so lengths are censored"},
        ),
        Row(
            name=f"tail batching that scores while others generate, {size}",
            paper=(streamed, streamed),
            figure=_speed_up("tail-batching", "sync-barrier"),
            **common,
        ),
    ]


UNEXPLAINED = "unexplained; the table of variations below says what moves it"
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
        remark="the paper's arm has its other techniques on as well",
    ),
    Row(
        name="active partial, GRPO: rollout throughput over sync",
        paper=(1.26, 1.44),
        figure=_throughput("active-partial", "sync"),
        scenario=GRPO,
        schedules=("sync", "active-partial"),
        remark=UNEXPLAINED,
    ),
    Row(
        name="active partial, GRPO: share of carried tokens",
        paper=(0.40, 0.40),
        figure=lambda by: by["active-partial"].carried_share,
        scenario=GRPO,
        schedules=("active-partial",),
        remark="every token written before the last update counts, also those of groups that were complete and"
        " waited; with a median of 4,000 tokens most groups of a batch began one step earlier",
    ),
    Row(
        name="active partial, GRPO: most versions in one response (paper: at most 5)",
        paper=(1, 5),
        is_bound=True,
        figure=lambda by: by["active-partial"].versions_max,
        scenario=GRPO,
        schedules=("active-partial",),
        remark="a response as long as the cap is generated during so many steps",
    ),
    Row(
        name="active partial, DAPO: rollout throughput over waves",
        paper=(1.08, 1.10),
        figure=_throughput("active-partial", "sync-waves"),
        scenario=DAPO,
        schedules=("sync-waves", "active-partial"),
        remark="the paper's baseline replaces a filtered group by a wave of 32; here two waves begin together",
    ),
    Row(
        name="active partial, DAPO: rollout throughput over sync that refills one group at a time",
        paper=(1.08, 1.10),
        figure=_throughput("active-partial", "sync"),
        scenario=DAPO,
        schedules=("sync", "active-partial"),
        remark="not the paper's baseline: refilling one by one leaves the devices nearly empty",
    ),
)
SCALED = ("sync-barrier", "tail-batching")
SCALED_SCENARIO = "rollpacker_14b_16k"


def runs(seeds: int) -> list[Run]:
    found = [_run(row, schedule, seed) for row in ROWS for schedule in row.schedules for seed in range(seeds)]
    scaled = [_scaled(name, scale, seed) for name in SCALED for scale in SCALES for seed in range(seeds)]
    return [*found, *scaled]


def _run(row: Row, schedule: str, seed: int) -> Run:
    return Run(scenario=row.scenario, schedule=schedule, steps=STEPS, seed=seed)


def _scaled(schedule: str, scale: int, seed: int) -> Run:
    return Run(scenario=SCALED_SCENARIO, schedule=schedule, steps=SCALED_STEPS, scale=scale, seed=seed)


def table(found: Mapping[Run, Figures], seeds: int) -> list[dict[str, Any]]:
    """Every row: the paper's figure, and ours over the seeds."""
    rows = [
        entry(row, [row.figure({n: found[_run(row, n, seed)] for n in row.schedules}) for seed in range(seeds)])
        for row in ROWS
    ]
    return [*rows, *_scaled_rows(found, seeds)]


def _scaled_rows(found: Mapping[Run, Figures], seeds: int) -> Iterator[dict[str, Any]]:
    for scale in SCALES:
        size = f"14B/16k, batch {128 * scale} on {32 * scale} devices"
        by = {name: [found[_scaled(name, scale, seed)] for seed in range(seeds)] for name in SCALED}
        gains = [speed_up(ours, base) for ours, base in zip(by["tail-batching"], by["sync-barrier"], strict=True)]
        remark = "the paper's arm has its other techniques on as well"
        yield _entry(f"{size}: tail batching over rewards after rollout", (2.2, 2.2), gains, remark)
        if scale > 1:
            before = [found[_scaled("tail-batching", scale // 2, seed)] for seed in range(seeds)]
            growth = [2 * speed_up(ours, half) for ours, half in zip(by["tail-batching"], before, strict=True)]
            remark = "training scales without loss here"
            yield _entry(f"{size}: samples/s over half of both", (1.5, 1.5), growth, remark)


def entry(row: Row, figures: Sequence[float]) -> dict[str, Any]:
    return _entry(row.name, row.paper, figures, row.remark, is_bound=row.is_bound)


def _entry(
    name: str, paper: tuple[float, float] | None, figures: Sequence[float], remark: str, *, is_bound: bool = False
) -> dict[str, Any]:
    ours = Range.over(figures)
    found: dict[str, Any] = {"name": name, "paper": paper and list(paper), "simulated": ours.to_dict()}
    if paper is None:
        return found | {"is_near": None, "remark": remark}
    low, high = paper
    is_near = low <= ours.most <= high if is_bound else low * (1 - AIM) <= ours.mean <= high * (1 + AIM)
    off = "outside the paper's bound" if is_bound else f"more than {AIM:.0%} off"
    return found | {"is_near": is_near} | ({} if is_near else {"off": off, "remark": remark})


def shown_paper(row: dict[str, Any]) -> str:
    if row["paper"] is None:
        return "-"
    low, high = row["paper"]
    return f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}"


def shown_range(figures: dict[str, float]) -> str:
    digits = 0 if figures["max"] >= 100 else 2
    return f"{figures['mean']:,.{digits}f} ({figures['min']:,.{digits}f} to {figures['max']:,.{digits}f})"


def note(row: dict[str, Any]) -> str:
    return "; ".join(row[name] for name in ("off", "remark") if name in row)


def lines(rows: list[dict[str, Any]]) -> list[str]:
    width = max(len(row["name"]) for row in rows)
    found = [f"{'':{width}}  {'paper':>12}  simulated: mean (least to most)"]
    for row in rows:
        found.append(
            f"{row['name']:{width}}  {shown_paper(row):>12}  {shown_range(row['simulated'])}   {note(row)}".rstrip()
        )
    return found
