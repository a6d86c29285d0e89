"""One optimizer step of the trainer on a GPU: seconds, tokens per second and peak memory.

    python benchmarks/gpu_training.py --shape 135M --json benchmarks/results/gpu_training_h200.json

128 responses to 16 prompts, with lengths drawn from a fixed log-normal distribution (mean about 290 tokens, at most
1,024), a random model, every response trained. All prompts begin with the same 20 of their 60 tokens, as with a chat
template. The first steps, which compile kernels and fill caches, do not count.

Beside the peak stands what the memory plan counts for this process, without the CUDA context and published weights.
``--probe FILE``: a program that prints lines "TRAIN name: X s, peak Y GB".
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.model_settings import ModelSettings
from tailrace.config.trainer_settings import TrainerSettings
from tailrace.core.ids import GroupId, ResponseId, Version
from tailrace.data.random_models import SHAPES, save_random_model
from tailrace.sizing.model_shape import ModelShape
from tailrace.sizing.parts import TrainingLoad, training_parts
from tailrace.store.segment import ResponsePayload
from tailrace.trainer.batch import Sample
from tailrace.trainer.trainer import Trainer

WARM_UP = 3
PROMPT_TOKENS = 60
COMMON_TOKENS = 20


def make_groups(vocabulary: int, version: Version, *, prompts: int, group_size: int) -> list[list[Sample]]:
    lengths, tokens = random.Random(0), np.random.default_rng(0)
    groups = []
    common = tokens.integers(0, vocabulary, COMMON_TOKENS, dtype=np.int32)
    for number in range(prompts):
        own = tokens.integers(0, vocabulary, PROMPT_TOKENS - COMMON_TOKENS, dtype=np.int32)
        prompt = np.concatenate([common, own])
        members = []
        for member in range(group_size):
            length = min(1024, int(lengths.lognormvariate(5.2, 1.1)) + 5)
            name = ResponseId(group=GroupId("train", 0, number), member=member)
            logprobs = np.full(length, -10.0, np.float32)
            response = ResponsePayload(
                response_id=name,
                tokens=tokens.integers(0, vocabulary, length, dtype=np.int32),
                logprobs=logprobs,
                behaviour_logprobs=logprobs,
                mask=np.ones(length, np.uint8),
                versions=((version, length),),
            )
            members.append(Sample(response_id=name, prompt=prompt, response=response, score=float(member % 2)))
        groups.append(members)
    return groups


def make_trainer(options: argparse.Namespace, folder: str, max_tokens: int) -> Trainer:
    return Trainer(
        Path(folder),
        model=ModelSettings(device=options.device, dtype=options.dtype),
        settings=TrainerSettings(
            max_tokens_per_gpu=max_tokens,
            gradient_checkpointing=options.gradient_checkpointing,
            torch_compile=options.torch_compile,
        ),
        algorithm=AlgorithmSettings(),
        temperature=1.0,
        max_steps=1000,
        seed=0,
    )


def planned_gib(options: argparse.Namespace, folder: str, max_tokens: int, num_tokens: int) -> float:
    is_autocast = options.device == "cuda" and options.dtype == "bfloat16"
    load = TrainingLoad(
        micro_tokens=min(max_tokens, num_tokens),
        published_itemsize=0,
        is_autocast=is_autocast,
        is_fused=options.device == "cuda",
        recomputes=options.gradient_checkpointing,
        is_compiled=options.torch_compile,
    )
    parts = training_parts(ModelShape.read(Path(folder)), load)
    return round(sum(part.num_bytes for part in parts if part.name != "process") / 2**30, 2)


def run_probe(file: Path) -> dict[str, Any]:
    said = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False).stdout
    print(said, flush=True)
    found = re.findall(r"TRAIN (.+): ([\d.]+) s, peak ([\d.]+) GB", said)
    return {name: {"s": float(seconds), "peak_gb": float(peak)} for name, seconds, peak in found}


def settle(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measure(options: argparse.Namespace, trainer: Trainer) -> dict[str, Any]:
    vocabulary = SHAPES[options.shape][0]
    accumulate_s, finish_s = [], []
    for _ in range(WARM_UP + options.steps):
        groups = make_groups(vocabulary, trainer.version, prompts=options.prompts, group_size=options.group_size)
        settle(options.device)
        start = time.perf_counter()
        trainer.accumulate(groups)
        settle(options.device)
        middle = time.perf_counter()
        result = trainer.finish_step()
        settle(options.device)
        accumulate_s.append(middle - start)
        finish_s.append(time.perf_counter() - middle)
    num_tokens = sum(len(sample.prompt) + len(sample.response) for group in groups for sample in group)
    step_s = median(a + f for a, f in zip(accumulate_s[WARM_UP:], finish_s[WARM_UP:], strict=True))
    return {
        "tokens": num_tokens,
        "first_step_s": round(accumulate_s[0] + finish_s[0], 2),
        "accumulate_s": round(median(accumulate_s[WARM_UP:]), 4),
        "finish_step_s": round(median(finish_s[WARM_UP:]), 4),
        "tokens_per_s": round(num_tokens / step_s),
        # of the last step: the trainer itself looks, and starts anew each time
        "peak_gib": result.metrics.get("perf/max_memory_allocated_gb"),
        "peak_reserved_gib": result.metrics.get("perf/max_memory_reserved_gb"),
    }


def show_kernels(options: argparse.Namespace, trainer: Trainer) -> None:
    groups = make_groups(
        SHAPES[options.shape][0], trainer.version, prompts=options.prompts, group_size=options.group_size
    )
    with torch.profiler.profile() as profile:
        trainer.train(groups)
        settle(options.device)
    print(profile.key_averages().table(sort_by="self_cuda_time_total", row_limit=30, max_name_column_width=60))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="135M")
    parser.add_argument(
        "--max_tokens", type=int, nargs="+", default=[16384, 32768], help="trainer.max_tokens_per_gpu, one or several"
    )
    parser.add_argument("--gradient_checkpointing", action="store_true")
    parser.add_argument("--torch_compile", action="store_true")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group_size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kernels", action="store_true", help="print which kernels the time goes to")
    parser.add_argument("--probe", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    steps: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        save_random_model(options.shape, Path(folder), dtype=torch.float32, device=options.device)
        for max_tokens in options.max_tokens:
            trainer = make_trainer(options, folder, max_tokens)
            found = measure(options, trainer)
            found["planned_gib"] = planned_gib(options, folder, max_tokens, found["tokens"])
            print(f"{options.shape}, {max_tokens} tokens per micro-batch: {found}", flush=True)
            steps[str(max_tokens)] = found
            if options.kernels:
                show_kernels(options, trainer)
            del trainer
            gc.collect()
            torch.cuda.empty_cache()
    if options.json:
        settings = {name: value for name, value in vars(options).items() if name not in ("json", "kernels", "probe")}
        device = torch.cuda.get_device_name() if options.device == "cuda" else options.device
        result = {"settings": settings, "device": device, "torch": torch.__version__, "steps_by_max_tokens": steps}
        if options.probe is not None:
            result["probe"] = run_probe(options.probe)
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
