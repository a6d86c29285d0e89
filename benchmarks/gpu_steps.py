"""Seconds per GRPO step of several schedules on one GPU, with the natural lengths of a real model.

    python benchmarks/gpu_steps.py MODEL_DIR --json benchmarks/results/gpu_steps_h200.json

16 prompts x 8 responses, at most 1,024 tokens each, every response trained. Seconds per step are the mean over the
steps after the second: the first two hold the start of the processes, compiled kernels and captured graphs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rollout_workloads import QUESTIONS, as_chat
from transformers import AutoTokenizer

HERE = Path(__file__).resolve().parent
WARM_UP = 2
PARTS = (
    "timing_s/gen", "timing_s/reward", "timing_s/update_actor", "timing_s/update_weights", "response_length/mean",
    "response_length/max",
)  # fmt: skip
ENDINGS = (
    "", " Explain why.", " Give two examples.", " Answer in one sentence.", " Think step by step.",
    " List the main points.", " What do people often get wrong about it?", " Tell it as a short story.",
)  # fmt: skip
"""Added to each question, for enough different prompts."""


def recipe(options: argparse.Namespace, preset: str, folder: Path) -> dict[str, Any]:
    return {
        "output_dir": str(folder / "run"),
        "report": False,
        "seed": options.seed,
        "model": {"path": str(options.model), "device": options.device, "dtype": options.dtype},
        "data": {"train": str(folder / "prompts.jsonl")},
        "reward": {"functions": [f"{HERE / 'trl_reward.py'}:plain_words"]},
        "rollout": {
            "n_samples_per_prompt": options.group_size,
            "max_response_length": options.max_response_length,
            "max_running": 2 * options.prompts * options.group_size,
            "prefill_chunk": 8192,
            "decoding": options.decoding,
        },
        "trainer": {"learning_rate": 1e-6, "max_tokens_per_gpu": options.max_tokens},
        "schedule": {"preset": preset, "rollout_batch_size": options.prompts, "max_steps": options.steps},
    }


def run(options: argparse.Namespace, preset: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer = AutoTokenizer.from_pretrained(options.model)
        questions = [question + ending for ending in ENDINGS for question in QUESTIONS]
        rows = [json.dumps({"prompt": as_chat(tokenizer, question)}) for question in questions]
        (folder / "prompts.jsonl").write_text("\n".join(rows) + "\n")
        (folder / "recipe.yaml").write_text(json.dumps(recipe(options, preset, folder)))
        command = [sys.executable, "-m", "tailrace", "train", str(folder / "recipe.yaml")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{preset}: {done.stdout[-2000:]}\n{done.stderr[-3000:]}")
        return summary((folder / "run" / "metrics.jsonl").read_text())


def summary(metrics: str) -> dict[str, Any]:
    rows = [json.loads(line) for line in metrics.splitlines()]
    ends = [row["timing_s/since_start"] for row in rows]
    steps = [after - before for before, after in zip(ends[WARM_UP - 1 :], ends[WARM_UP:], strict=False)]
    parts = {part: round(fmean(row.get(part, 0.0) for row in rows[WARM_UP:]), 3) for part in PARTS}
    return {
        "s_per_step": round(fmean(steps), 3),
        "first_steps_s": round(ends[WARM_UP - 1], 1),
        "steps": len(rows),
        "mean_of": parts,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="Hugging Face directory")
    parser.add_argument(
        "--presets", nargs="+", default=["sync", "one-step", "tail-batching", "active-partial", "staleflow"]
    )
    parser.add_argument("--steps", type=int, default=17)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group_size", type=int, default=8)
    parser.add_argument("--max_response_length", type=int, default=1024)
    parser.add_argument("--max_tokens", type=int, default=16384, help="trainer.max_tokens_per_gpu")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--decoding", default="auto", help="rollout.decoding")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = {}
    for preset in options.presets:
        found[preset] = run(options, preset)
        print(f"{preset}: {found[preset]}", flush=True)
    result = {
        "settings": {name: str(value) for name, value in vars(options).items() if name != "json"},
        "device": torch.cuda.get_device_name() if options.device == "cuda" else options.device,
        "torch": torch.__version__,
        "schedules": found,
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
