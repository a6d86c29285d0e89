"""One optimizer step of the trainer on a GPU: seconds, tokens per second and peak memory.

    python benchmarks/gpu_training.py --shape 135M --json benchmarks/results/gpu_training_h200.json

128 responses to 16 prompts, with lengths drawn from a fixed log-normal distribution (mean about 290 tokens, at most
1,024), a random model, every response trained. The first steps, which compile kernels and fill caches, do not count.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.settings import ModelSettings, TrainerSettings
from tailrace.core.ids import GroupId, TrajectoryId, Version
from tailrace.data.random_models import SHAPES, save_random_model
from tailrace.store.segment import Response
from tailrace.trainer.batch import Sample
from tailrace.trainer.trainer import Trainer

WARM_UP = 3
PROMPT_TOKENS = 60


def make_groups(vocabulary: int, version: Version, *, prompts: int, group_size: int) -> list[list[Sample]]:
    lengths, tokens = random.Random(0), np.random.default_rng(0)
    groups = []
    for number in range(prompts):
        prompt = tokens.integers(0, vocabulary, PROMPT_TOKENS, dtype=np.int32)
        members = []
        for member in range(group_size):
            length = min(1024, int(lengths.lognormvariate(5.2, 1.1)) + 5)
            name = TrajectoryId(group=GroupId("train", 0, number), member=member)
            logprobs = np.full(length, -10.0, np.float32)
            response = Response(
                trajectory=name,
                tokens=tokens.integers(0, vocabulary, length, dtype=np.int32),
                logprobs=logprobs,
                full_logprobs=logprobs,
                mask=np.ones(length, np.uint8),
                versions=((version, length),),
            )
            members.append(Sample(trajectory=name, prompt=prompt, response=response, score=float(member % 2)))
        groups.append(members)
    return groups


def make_trainer(options: argparse.Namespace, folder: str) -> Trainer:
    save_random_model(options.shape, Path(folder), dtype=torch.float32, device=options.device)
    return Trainer(
        Path(folder),
        model=ModelSettings(device=options.device, dtype=options.dtype),
        settings=TrainerSettings(
            max_tokens_per_gpu=options.max_tokens, gradient_checkpointing=options.gradient_checkpointing
        ),
        algorithm=AlgorithmSettings(),
        temperature=1.0,
        max_steps=1000,
        seed=0,
    )


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
    parser.add_argument("--max_tokens", type=int, default=16384, help="trainer.max_tokens_per_gpu")
    parser.add_argument("--gradient_checkpointing", action="store_true")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group_size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kernels", action="store_true", help="print which kernels the time goes to")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(options, folder)
        found = measure(options, trainer)
        print(f"{options.shape}, {options.max_tokens} tokens per micro-batch: {found}", flush=True)
        if options.kernels:
            show_kernels(options, trainer)
    if options.json:
        settings = {name: value for name, value in vars(options).items() if name not in ("json", "kernels")}
        device = torch.cuda.get_device_name() if options.device == "cuda" else options.device
        result = {"settings": settings, "device": device, "torch": torch.__version__, "step": found}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
