"""The tables of measured seconds per step on a GPU, with the tokens that a step trained: lengths differ by schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

Result = dict[str, Any]
Table = Callable[[Sequence[str], Iterable[Sequence[str]]], list[str]]

STEP_NAMES = {
    "sync": "`sync`, native engine",
    "sync:::vllm": "`sync`, vLLM engine",
    "one-step": "`one-step`",
    "one-step::never": "`one-step`, without MPS",
    "staleflow": "`staleflow`, bound 1",
    "staleflow:4": "`staleflow` with four instances",
    "trl": "TRL 1.16 with vLLM 0.26 (length: mean of all its steps)",
}
SCHEDULE_NAMES = {"staleflow": "`staleflow`, bound 1"}
_IN_TURN = ("sync", "tail-batching", "active-partial")
"""Schedules that generate and train in turn: the seconds of their parts add up to those of the step."""


def steps(result: Result, table: Table) -> list[str]:
    """Runs of ``gpu_steps.py``."""
    responses = int(result["settings"]["prompts"]) * int(result["settings"]["group_size"])
    rows = [_step_row(name, run, responses) for name, run in result["runs"].items()]
    heading = ["measured", "seconds per step", "mean length", "tokens trained per step", "ms per trained token"]
    return table([*heading, "of the step: rollout", "the update", "first two steps"], rows)


def _step_row(name: str, run: Result, responses: int) -> list[str]:
    found = run.get("mean_of", {})
    length = found.get("response_length/mean", run.get("mean_length", 0.0))
    rollout = found["timing_s/gen"] if found and name.split(":")[0] in _IN_TURN else None
    shown = [
        _seconds(rollout) if found else f"{run['generation_s_per_step_with_first']:.2f} (with the first)",
        _seconds(found.get("timing_s/update_actor")),
        f"{run['first_steps_s']:.1f} s" if "first_steps_s" in run else "",
    ]
    name = STEP_NAMES.get(name, f"`{name}`")
    return [name, f"{run['s_per_step']:.2f}", f"{length:.0f}", *_tokens(run["s_per_step"], length * responses), *shown]


def schedules(result: Result, table: Table) -> list[str]:
    """Runs of ``gpu_schedules.py``."""
    runs, simulated = result["schedules"], result["simulated"]["schedules"]
    base = runs["sync"]
    rows = []
    for name in sorted(runs, key=lambda name: -runs[name]["s_per_step"]):
        run, figures, error = runs[name], runs[name]["figures"], simulated[name]
        tokens = figures["tokens_trained"] / figures["num_steps"]
        before = base["figures"]["tokens_trained"] / base["figures"]["num_steps"]
        faster = base["s_per_step"] / run["s_per_step"]
        wasted = figures["tokens_wasted"] / figures["tokens_generated"]
        rows.append(
            [
                SCHEDULE_NAMES.get(name, f"`{name}`"),
                f"{run['s_per_step']:.2f}",
                "" if name == "sync" else f"{faster:.2f} x",
                *_tokens(run["s_per_step"], tokens),
                "" if name == "sync" else f"{faster * tokens / before:.2f} x",
                f"{run['update_actor_s']:.2f}",
                f"{wasted:.0%}" if wasted else "0",
                f"{figures['rollout_idle_share']:.0%}",
                f"{figures['trainer_idle_share']:.0%}",
                f"{'(fitted) ' if error['is_fitted'] else ''}{error['error']:+.1%}",
            ]
        )
    return table(_schedule_heading(result["settings"]["model"]), rows)


def _schedule_heading(model: str) -> list[str]:
    return [
        f"measured, {'SmolLM2-135M' if model == 'smollm2' else model}",
        "seconds per step",
        "faster than `sync`",
        "tokens trained per step",
        "ms per trained token",
        "faster per token",
        "seconds of the update",
        "tokens wasted",
        "rollout idle",
        "trainer idle",
        "error of the simulator",
    ]


def _tokens(seconds: float, tokens: float) -> list[str]:
    return [f"{tokens:,.0f}", f"{1000 * seconds / tokens:.3f}"]


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
