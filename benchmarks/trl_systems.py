"""The systems of the comparison with TRL: each trains a plan in a fresh process and reports what it did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trl_plan import Plan

from tailrace.core.commands import Accumulate
from tailrace.core.events import ResponsesScored
from tailrace.observe.journal.journal_file import read

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One training."""

    wall_s: float
    """From the start of the process to its end."""
    optimizer_steps: int
    samples_generated: int
    tokens_generated: int
    samples_trained: int
    tokens_trained: int
    samples_without_advantage: int
    """In groups of equal scores: their gradient is zero, and tailrace does not compute it."""
    step_ends_s: list[float]
    """When each optimizer step ended; only differences mean anything."""
    rewards: list[float]
    """Mean reward of each batch."""
    generation_s: float = 0.0
    """Seconds of generating and scoring, where the system says so."""
    peak_gb: float | None = None
    """Most GB of tensors on a GPU."""

    def check(self, plan: Plan) -> None:
        """Refuse a training in which a response was left out or trained twice."""
        found = (self.optimizer_steps, self.samples_generated, self.samples_trained)
        if found != (plan.steps, plan.num_samples, plan.num_samples) or self.tokens_trained != self.tokens_generated:
            raise SystemExit(f"{plan.steps} steps must generate and train {plan.num_samples} samples once: {self}")

    def summary(self, plan: Plan) -> dict[str, float]:
        """Samples per second, and what they were made of."""
        steady_s = self.step_ends_s[-1] - self.step_ends_s[0]
        per_step = plan.num_samples / plan.steps
        return {
            "end_to_end": round(self.samples_trained / self.wall_s, 2),
            "per_step": round(per_step * (plan.steps - 1) / steady_s, 2),
            "wall_s": round(self.wall_s, 2),
            "step_s": round(steady_s / (plan.steps - 1), 2),
            "outside_steady_steps_s": round(self.wall_s - steady_s, 2),
            "samples_trained": self.samples_trained,
            "samples_without_advantage": self.samples_without_advantage,
            "tokens_generated": self.tokens_generated,
            "reward_first": round(self.rewards[0], 3),
            "reward_last": round(self.rewards[-1], 3),
        }


def run_tailrace(plan: Plan, folder: Path) -> Report:
    recipe = folder / "recipe.yaml"
    recipe.write_text(json.dumps(_recipe(plan, folder)), encoding="utf-8")
    wall_s = _time([sys.executable, "-m", "tailrace", "train", str(recipe)], plan, folder)
    rows = _read_lines(folder / "run" / "metrics.jsonl")
    journal = [entry for _, entry in read(folder / "run" / "journal.jsonl")]
    scored = [score for entry in journal if isinstance(entry.event, ResponsesScored) for score in entry.event.scores]
    steps = [command for entry in journal for command in entry.commands if isinstance(command, Accumulate)]
    return Report(
        wall_s=wall_s,
        optimizer_steps=len(rows),
        samples_generated=len(scored),
        tokens_generated=rows[-1]["perf/tokens_total"],
        # Each response by its name, so that one trained twice would count once.
        samples_trained=len({name for step in steps for name in step.responses}),
        tokens_trained=round(sum(row["response_length/mean"] * row["groups/num_samples"] for row in rows)),
        samples_without_advantage=round(sum(row["groups/frac_zero_std"] * row["groups/num_samples"] for row in rows)),
        step_ends_s=[row["timing_s/since_start"] for row in rows],
        rewards=[row["reward/mean"] for row in rows],
    )


def _read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _recipe(plan: Plan, folder: Path) -> dict[str, Any]:
    """Everything else is the default: GRPO's advantage, the clipped surrogate, its token mean, no KL term."""
    return {
        "output_dir": str(folder / "run"),
        "report": False,
        "seed": plan.seed,
        "model": {"path": plan.checkpoint, "device": "cpu"},
        "data": {"train": str(folder / "prompts.jsonl"), "shuffle": False},
        "reward": {"functions": [f"{HERE / 'trl_reward.py'}:{plan.reward}"]},
        "rollout": {
            "n_samples_per_prompt": plan.group_size,
            "max_response_length": plan.max_response_length,
            "max_running": plan.max_running,
            "temperature": plan.temperature,
            # A model this small decodes no faster with a second thread; the controller and the rewards can use it.
            "threads": 1 if plan.model == "tiny-arith" else plan.threads,
        },
        "algorithm": {"clip_ratio_low": plan.clip_ratio_low, "clip_ratio_high": plan.clip_ratio_high},
        "trainer": {"learning_rate": plan.learning_rate, "threads": plan.threads},
        "schedule": {"preset": "sync", "rollout_batch_size": plan.prompts, "max_steps": plan.steps},
    }


def run_trl(path: str, plan: Plan, folder: Path) -> Report:
    """``path``: how TRL generates: ``generate``, ``continuous`` batching or ``vllm``."""
    wall_s = _time([sys.executable, str(HERE / "trl_child.py"), str(folder), path], plan, folder)
    return Report(wall_s=wall_s, **json.loads((folder / "report.json").read_text(encoding="utf-8")))


def _time(command: Sequence[str], plan: Plan, folder: Path) -> float:
    """Idle threads sleep in every system, as in tailrace's own workers: spinning ones would slow their neighbours."""
    environment = os.environ | {"OMP_NUM_THREADS": str(plan.threads), "OMP_WAIT_POLICY": "PASSIVE"}
    start = time.monotonic()
    with (folder / "log").open("w") as log:
        ended = subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False)
    seconds = time.monotonic() - start
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{(folder / 'log').read_text()[-4000:]}")
    return seconds


SYSTEMS: dict[str, Callable[[Plan, Path], Report]] = {
    "tailrace": run_tailrace,
    "trl_generate": partial(run_trl, "generate"),
    "trl_continuous_batching": partial(run_trl, "continuous"),
}
