"""Does each schedule teach, and how fast? Accuracy on held-out prompts against wall-clock time, on one GPU.

    python benchmarks/gpu_learning.py --json RESULT
    python benchmarks/gpu_learning.py --json RESULT --draw docs/images/gpu-learning.svg
    python benchmarks/gpu_learning.py --json RESULT --set 'model.path="DIR"'      SmolLM2-135M-Instruct from a folder

The recipe `smollm2-gpu` (SmolLM2-135M learns to add numbers), a run for each schedule. A run is PRESET[:MAX_STALENESS].
Accuracy after a step stands at the time at which the step ended. Time counts from the end of the first step, so that
starting processes and compiling kernels do not count; evaluations do. Runs that RESULT has already are kept.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from curves import draw
from gpu_runs import change, train

from tailrace.config.load import read_recipe

RUNS = ("sync", "tail-batching", "staleflow:1", "staleflow:3")


def recipe(options: argparse.Namespace, name: str) -> dict[str, Any]:
    preset, _, bound = name.partition(":")
    found = read_recipe(options.recipe)
    found.pop("output_dir", None)
    changes = [
        f'schedule.preset="{preset}"',
        f"schedule.max_steps={options.steps}",
        f"eval_interval={options.eval_interval}",
        "save_interval=null",
    ]
    if bound:
        changes.append(f"schedule.max_staleness={bound}")
    change(found, changes + options.set)
    return found


def curve(rows: list[dict[str, Any]], metric: str) -> list[dict[str, float]]:
    ends = {row["step"]: row["timing_s/since_start"] for row in rows if "timing_s/since_start" in row}
    first = ends[1]
    return [
        {"step": row["step"], "s": round(max(0.0, ends.get(row["step"], first) - first), 2), "accuracy": row[metric]}
        for row in rows
        if metric in row
    ]


def measure(options: argparse.Namespace, name: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        run = train(recipe(options, name), Path(folder))
        rows = run.metrics()
        if options.journals:
            run.keep(options.journals, name.replace(":", "-"))
    trained = [row for row in rows if "reward/mean" in row]
    return {
        "curve": curve(rows, options.metric),
        "rewards": [round(row["reward/mean"], 4) for row in trained],
        "s_per_step": round(
            (trained[-1]["timing_s/since_start"] - trained[1]["timing_s/since_start"]) / (len(trained) - 2), 3
        ),
    }


def known_runs(path: Path, result: dict[str, Any]) -> dict[str, Any]:
    """Runs of an earlier call with the same settings on the same kind of device."""
    if not path.exists():
        return {}
    found = json.loads(path.read_text())
    return found["runs"] if {**found, "runs": {}} == result else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="smollm2-gpu")
    parser.add_argument("--runs", nargs="+", default=list(RUNS))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--eval_interval", type=int, default=10)
    parser.add_argument("--metric", default="eval/heldout/avg@1")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=JSON", help="further settings of all runs")
    parser.add_argument("--journals", type=Path, help="folder to keep the journals in, compressed")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--draw", type=Path, metavar="SVG", help="only draw the picture of the result in --json")
    options = parser.parse_args()
    if options.draw:
        runs = json.loads(options.json.read_text())["runs"]
        curves = {
            name: [(point["s"], point["accuracy"]) for point in runs[name]["curve"]]
            for name in options.runs
            if name in runs
        }
        options.draw.write_text(
            draw(curves, x="seconds since the end of the first step", y="accuracy on held-out prompts")
        )
        return
    result: dict[str, Any] = {
        "settings": {
            "recipe": options.recipe,
            "steps": options.steps,
            "set": [pair for pair in options.set if not pair.startswith("model.path")],
        },
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
        "runs": {},
    }
    result["runs"] = known_runs(options.json, result)
    for name in options.runs:
        try:
            result["runs"][name] = measure(options, name)
        except RuntimeError as error:
            print(f"{name} failed: {error}", flush=True)
            continue
        print(f"{name}: {result['runs'][name]}", flush=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
