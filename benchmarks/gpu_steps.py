"""Seconds per GRPO step of several schedules on one GPU, with the natural lengths of a real model; beside TRL.

    python benchmarks/gpu_steps.py MODEL_DIR --json benchmarks/results/gpu_steps_h200.json
    python benchmarks/gpu_steps.py MODEL_DIR --runs sync staleflow:4 one-step::never trl --trl_steps 8

A run is PRESET[:INSTANCES[:MPS[:ENGINE]]] (``schedule.mps``: auto or never; ``rollout.engine``: native or vllm), or
``trl``: TRL's trainer with vLLM in its process.

16 prompts x 8 responses, at most 1,024 tokens each, every response trained. Seconds per step are the mean over the
steps after the second: the first two hold the start of the processes, compiled kernels and captured graphs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from gpu_runs import change, means, plan, train
from rollout_workloads import QUESTIONS, as_chat
from transformers import AutoTokenizer
from trl_plan import Plan
from trl_systems import run_trl

HERE = Path(__file__).resolve().parent
WARM_UP = 2
PARTS = (
    "timing_s/gen", "timing_s/reward_exposed", "timing_s/update_actor", "timing_s/update_weights",
    "response_length/mean", "response_length/max", "perf/max_memory_allocated_gb", "perf/max_memory_reserved_gb",
    "mismatch/logprob_abs_diff",
)  # fmt: skip
ENDINGS = (
    "", " Explain why.", " Give two examples.", " Answer in one sentence.", " Think step by step.",
    " List the main points.", " What do people often get wrong about it?", " Tell it as a short story.",
)  # fmt: skip
"""Added to each question, for enough different prompts."""


def rows(model: Path) -> list[dict[str, Any]]:
    tokenizer = AutoTokenizer.from_pretrained(model)
    return [{"prompt": as_chat(tokenizer, question + ending)} for ending in ENDINGS for question in QUESTIONS]


def recipe(options: argparse.Namespace, run: str, folder: Path) -> dict[str, Any]:
    preset, instances, mps, engine = [*run.split(":"), "", "", ""][:4]
    found: dict[str, Any] = {
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
            "num_instances": int(instances or 1),
        }
        | ({"engine": engine} if engine else {}),
        "trainer": {"learning_rate": 1e-6} | ({"max_tokens_per_gpu": options.max_tokens} if options.max_tokens else {}),
        "schedule": {"preset": preset, "rollout_batch_size": options.prompts, "max_steps": options.steps}
        | ({"mps": mps} if mps else {}),
    }
    change(found, options.set)
    return found


def run_ours(options: argparse.Namespace, name: str, folder: Path) -> dict[str, Any]:
    lines = [json.dumps(row) for row in rows(options.model)]
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    settings = recipe(options, name, folder)
    planned = plan(settings, folder) if name == options.runs[0] else []  # the memory is the same for all
    run = train(settings, folder)
    if options.journals:
        run.keep(options.journals, name.replace(":", "-"))
    return summary(run.metrics()) | {"said": run.said, "planned": planned, "peak_used_gib": run.peak_used_gib}


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    ends = [row["timing_s/since_start"] for row in found]
    return {
        "s_per_step": seconds_per_step(ends),
        "first_steps_s": round(ends[WARM_UP - 1], 1),
        "steps": len(found),
        "mean_of": means(found[WARM_UP:], PARTS),
    }


def seconds_per_step(ends: list[float]) -> float:
    return round((ends[-1] - ends[WARM_UP - 1]) / (len(ends) - WARM_UP), 3)


def run_peer(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    plan = Plan(
        model=options.model.name,
        checkpoint=str(options.model),
        reward="plain_words",
        steps=options.trl_steps,
        prompts=options.prompts,
        group_size=options.group_size,
        max_response_length=options.max_response_length,
        learning_rate=1e-6,
        max_running=2 * options.prompts * options.group_size,
        threads=8,
        device=options.device,
        seed=options.seed,
    )
    plan.write(folder, rows(options.model))
    report = run_trl("vllm" if options.device == "cuda" else "generate", plan, folder)
    report.check(plan)
    return {
        "s_per_step": seconds_per_step(report.step_ends_s),
        "generation_s_per_step_with_first": round(report.generation_s / plan.steps, 3),
        "steps": plan.steps,
        "mean_length": round(report.tokens_generated / report.samples_generated, 1),
        "start_s": round(report.wall_s - (report.step_ends_s[-1] - report.step_ends_s[0]), 1),
        "peak_gb": report.peak_gb,
    }


def measure(options: argparse.Namespace, run: str) -> dict[str, Any]:
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        found = run_peer(options, Path(name)) if run == "trl" else run_ours(options, run, Path(name))
    return found | {"wall_s": round(time.monotonic() - start, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="Hugging Face directory")
    parser.add_argument(
        "--runs",
        nargs="+",
        default=["sync", "one-step", "tail-batching", "active-partial", "staleflow", "staleflow:4", "trl"],
    )
    parser.add_argument("--steps", type=int, default=17)
    parser.add_argument("--trl_steps", type=int, default=17)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group_size", type=int, default=8)
    parser.add_argument("--max_response_length", type=int, default=1024)
    parser.add_argument("--max_tokens", type=int, help="trainer.max_tokens_per_gpu; default: from the card's memory")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--decoding", default="auto", help="rollout.decoding")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=JSON", help="further settings of our runs")
    parser.add_argument("--journals", type=Path, help="folder to keep the journals in, compressed")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if min(options.steps, options.trl_steps) <= WARM_UP:
        parser.error(f"--steps and --trl_steps must be above {WARM_UP}: the first {WARM_UP} steps do not count")
    result: dict[str, Any] = {
        "settings": {name: str(value) for name, value in vars(options).items() if name not in ("json", "journals")}
        | {"model": options.model.name},
        "device": torch.cuda.get_device_name() if options.device == "cuda" else options.device,
        "torch": torch.__version__,
        "runs": {},
    }
    for run in options.runs:
        try:
            result["runs"][run] = measure(options, run)
        except (RuntimeError, SystemExit) as error:
            print(f"{run} failed: {error}", flush=True)
            continue
        print(f"{run}: {result['runs'][run]}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
