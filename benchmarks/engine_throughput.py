"""Decode throughput on one device: our engines by batch size, beside vLLM's own and a hand-written probe.

    python benchmarks/engine_throughput.py 135M --json benchmarks/results/engine_h200_135m.json
    python benchmarks/engine_throughput.py MODEL_DIR --systems native vllm --natural native --json ...

Systems: ``native``; ``vllm``, which is vLLM's offline interface; ``vllm-adapter``, the same behind our engine contract.

Every response is forced to the same length, so the figure is tokens per second of a full batch, from submit to the
finished outputs with their log-probs, prefill included. Of two runs the faster counts. What happens once (compiling
kernels, capturing graphs) is in a run before and is counted apart. ``--natural SYSTEM ...`` adds 256 prompts x 8
responses that end where the model ends them, in these systems; it needs a real model and reasoning-gym.

``--probe FILE``: a program that is given the shape and the batch sizes and prints lines "batch N: ... X tok/s".
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import torch
from decode_systems import SYSTEMS, Setting, System, Task
from rollout_workloads import gym_prompts

from tailrace.data.random_models import SHAPES, save_random_model

PROMPT_TOKENS = 64
NATURAL = {"prompts": 256, "group_size": 8, "max_tokens": 3072}
MAX_PROMPT = 512


def seconds(system: System, prompts: list[list[int]], task: Task) -> tuple[float, list[int]]:
    start = time.perf_counter()
    lengths = system.generate(prompts, task)
    return time.perf_counter() - start, lengths


def measure_batch(system: System, batch: int, length: int) -> dict[str, float]:
    prompts = [list(range(index, index + PROMPT_TOKENS)) for index in range(batch)]
    first, _ = seconds(system, prompts, Task(max_tokens=min(32, length)))
    timed = []
    for _ in range(2):
        taken, lengths = seconds(system, prompts, Task(max_tokens=length))
        if lengths != [length] * batch:
            raise RuntimeError(f"{batch} responses of {length} tokens were asked for, got {lengths}")
        timed.append(taken)
    return {
        "tokens_per_s": round(batch * length / min(timed)),
        "ms_per_step": round(1000 * min(timed) / length, 3),
        "first_run_of_32_tokens_s": round(first, 2),
    }


def measure_natural(system: System, checkpoint: Path, at_a_time: int) -> dict[str, float]:
    prompts, end_token = gym_prompts(checkpoint, NATURAL["prompts"])
    task = Task(group_size=NATURAL["group_size"], max_tokens=NATURAL["max_tokens"], end_token=end_token)
    first, _ = seconds(system, prompts, task)
    taken, lengths = seconds(system, prompts, task)
    return {
        "s": round(taken, 2),
        "first_run_s": round(first, 2),
        "at_a_time": at_a_time,
        "responses": len(lengths),
        "tokens": sum(lengths),
        "tokens_per_s": round(sum(lengths) / taken),
        "median_length": median(lengths),
        "share_at_cap": round(sum(length == task.max_tokens for length in lengths) / len(lengths), 3),
    }


def measure(options: argparse.Namespace, name: str, checkpoint: Path) -> dict[str, Any]:
    most, length = max(options.batches), PROMPT_TOKENS + options.length
    is_natural = name in options.natural
    if is_natural:
        most = max(most, options.natural_running if name == "native" else 0)
        length = max(length, MAX_PROMPT + NATURAL["max_tokens"])
    setting = Setting(
        checkpoint=checkpoint,
        device=options.device,
        dtype=options.dtype,
        decoding=options.decoding,
        max_running=most,
        max_length=length,
        kv_tokens=options.kv_tokens or max(options.batches) * (PROMPT_TOKENS + options.length + 32),
        memory_share=options.memory_share,
    )
    start = time.perf_counter()
    system = SYSTEMS[name](setting)
    found: dict[str, Any] = {"start_s": round(time.perf_counter() - start, 1), "figures": {}}
    for batch in options.batches:
        found["figures"][batch] = measure_batch(system, batch, options.length)
        print(f"{options.model} {name} batch {batch}: {found['figures'][batch]}", flush=True)
    if is_natural:
        found["natural"] = measure_natural(system, checkpoint, most)
        print(f"{options.model} {name} natural lengths: {found['natural']}", flush=True)
    system.close()
    return found


def run_probe(options: argparse.Namespace) -> dict[str, Any]:
    shape = options.model if options.model in SHAPES else "135M"
    command = [sys.executable, str(options.probe), shape, ",".join(map(str, options.batches))]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = re.findall(r"batch (\d+): .*?([\d,]+) tok/s", said)
    found = {batch: {"tokens_per_s": int(speed.replace(",", ""))} for batch, speed in rows}
    print(f"{shape} probe: {found}", flush=True)
    return {"figures": found}


def versions() -> dict[str, str]:
    found = {}
    for name in ("torch", "transformers", "vllm"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help=f"{', '.join(SHAPES)} (random weights) or a Hugging Face directory")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=["native"])
    parser.add_argument("--probe", type=Path)
    parser.add_argument("--natural", nargs="+", choices=SYSTEMS, default=[], metavar="SYSTEM")
    parser.add_argument(
        "--natural_running", type=int, default=2048, help="responses at a time with --natural, native engine"
    )
    parser.add_argument("--decoding", default="auto", help="rollout.decoding of the native engine")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 128, 256, 512])
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--kv_tokens", type=int, help="KV cache of the native engine; default: room for the batches")
    parser.add_argument("--memory_share", type=float, default=0.4, help="share of the GPU's memory that vLLM takes")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {
        "model": Path(options.model).name,
        "decoding": options.decoding,
        "length": options.length,
        "dtype": options.dtype,
        "device": torch.cuda.get_device_name() if options.device == "cuda" else platform.machine(),
        "versions": versions(),
        "systems": {},
    }

    def keep(name: str, found: dict[str, Any]) -> None:
        result["systems"][name] = found
        if options.json:
            options.json.write_text(json.dumps(result, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(options.model)
        if options.model in SHAPES:
            checkpoint = Path(folder)
            save_random_model(options.model, checkpoint, dtype=getattr(torch, options.dtype), device=options.device)
        for name in options.systems:
            keep(name, measure(options, name, checkpoint))
        if options.probe:
            keep("probe", run_probe(options))


if __name__ == "__main__":
    main()
