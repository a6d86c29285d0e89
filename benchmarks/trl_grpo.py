"""Samples per second of GRPO, end to end: ``tailrace train`` beside TRL's ``GRPOTrainer`` with both its generators.

    python benchmarks/trl_grpo.py --json FILE [--model tiny-arith|smollm2] [--steps 10] [--rounds 1]

Same checkpoint, prompts and their order, group size, batch, response cap, optimizer steps, learning rate, loss (token
mean of the clipped surrogate, no KL term), temperature, precision (fp32) and threads. Every response is trained exactly
once; the script counts and refuses a run where that is not so. Each training is a fresh process and systems take turns.

``end_to_end`` counts from the start of the process to its end: imports, loading, training, and for tailrace also its
journal, payload store and checkpoint, which TRL is spared. Neither writes a report. ``per_step`` counts from the end of
the first optimizer step to the end of the last. Figures are medians over the rounds; ``ratio`` is tailrace over the
faster of TRL's two, end to end.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rollout_workloads import find_checkpoint
from trl_plan import REWARDS, Plan
from trl_systems import SYSTEMS, Report

SIZES: dict[str, dict[str, Any]] = {
    "tiny-arith": {"steps": 6, "prompts": 128, "group_size": 8, "max_response_length": 384, "learning_rate": 3e-4},
    "smollm2": {"steps": 3, "prompts": 4, "group_size": 4, "max_response_length": 64, "learning_rate": 1e-6},
}


def main() -> None:
    options = _parse()
    sizes = {name: getattr(options, name) or value for name, value in SIZES[options.model].items()}
    plan = Plan(
        model=options.model,
        checkpoint=str(find_checkpoint(options.model)),
        reward=REWARDS[options.model],
        max_running=options.max_running,
        threads=options.threads,
        **sizes,
    )
    if plan.steps < 2:
        raise SystemExit("--steps must be at least 2: the first step's end is where the steady state begins")
    rounds: dict[str, list[Report]] = {name: [] for name in options.systems}
    for number in range(options.rounds):
        for name in options.systems:
            with tempfile.TemporaryDirectory() as folder:
                plan.write(Path(folder))
                report = SYSTEMS[name](plan, Path(folder))
            report.check(plan)
            rounds[name].append(report)
            print(f"round {number + 1}: {name} {json.dumps(report.summary(plan))}", flush=True)
    text = json.dumps(_result(plan, rounds), indent=2)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")
    print(text)


def _result(plan: Plan, rounds: dict[str, list[Report]]) -> dict[str, Any]:
    systems = {name: _median([report.summary(plan) for report in reports]) for name, reports in rounds.items()}
    return {
        "benchmark": "trl_grpo",
        **_ratios(systems),
        "systems": systems,
        "rounds": {name: [asdict(report) for report in reports] for name, reports in rounds.items()},
        "plan": asdict(plan) | {"checkpoint": plan.model},
        "versions": {name: version(name) for name in ("torch", "transformers", "trl")}
        | {"python": platform.python_version()},
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "threads": plan.threads},
    }


def _ratios(systems: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Each figure beside the better of the peers in that figure."""
    peers = {name: figures for name, figures in systems.items() if name != "tailrace"}
    if not peers or "tailrace" not in systems:
        return {}
    best = {key: max(peers, key=lambda name: peers[name][key]) for key in ("end_to_end", "per_step")}
    ratio = {key: round(systems["tailrace"][key] / peers[name][key], 2) for key, name in best.items()}
    return {"ratio": ratio["end_to_end"], "ratio_per_step": ratio["per_step"], "best_peer": best["end_to_end"]}


def _median(summaries: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(summary[key] for summary in summaries) for key in summaries[0]}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--model", default="tiny-arith", choices=SIZES)
    parser.add_argument("--steps", type=int, help="optimizer steps")
    parser.add_argument("--prompts", type=int, help="prompts per step")
    parser.add_argument("--group-size", type=int, help="responses per prompt")
    parser.add_argument("--max-response-length", type=int)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--max-running", type=int, default=128, help="most responses generated at the same time")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of every system")
    parser.add_argument("--rounds", type=int, default=1, help="trainings of each system, taking turns")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    return parser.parse_args()


if __name__ == "__main__":
    main()
