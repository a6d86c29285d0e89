"""Device memory that a trainer keeps between the pieces of a step, and what it costs to keep less.

    python benchmarks/gpu_streamed_memory.py --json benchmarks/results/gpu_streamed_memory_h200.json
    python benchmarks/gpu_streamed_memory.py --device cpu --tiny

A step on the batch of `gpu_training.py` comes in pieces of whole groups, as a streamed step does. Arms:

* `plain`: everything on the device
* `gradients`: gradients wait on the host (`trainer.gradients_device`)
* `optimizer`: AdamW's state and step are on the host (`trainer.optimizer_device`)
* `both`
* `reference`: `plain` with a KL term, so with a reference model, on the device
* `reference on host`: its layers lie on the host (`trainer.reference_device`)
* `all on host`: `both` with the reference on the host

After each piece of all steps but the first, what torch keeps for itself is given back, and three numbers are noted:
bytes of tensors (`between_gib`), bytes that torch holds (`held_gib`), and how much less of the card is free than when
the process had only its context (`used_gib`). The largest over pieces counts. Beside them stands what the memory plan
counts without the context (`planned_gib`). Seconds are medians; those of a piece include giving memory back where
gradients wait on the host. `largest_difference`: of a weight, from the arm `plain` or `reference`, after all steps.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from gpu_training import make_groups
from transformers import LlamaConfig, LlamaForCausalLM

from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.model_settings import ModelSettings
from tailrace.config.trainer_settings import TrainerSettings
from tailrace.data.random_models import SHAPES, save_random_model
from tailrace.sizing.model_shape import ModelShape
from tailrace.sizing.parts import TrainingLoad, training_parts
from tailrace.trainer.trainer import Trainer

GIB = 2**30
GRADIENTS: dict[str, Any] = {"gradients_device": "cpu"}
OPTIMIZER: dict[str, Any] = {"optimizer_device": "cpu"}
REFERENCE: dict[str, Any] = {"reference_device": "cpu"}
ARMS: dict[str, tuple[bool, dict[str, Any]]] = {
    "plain": (False, {}),
    "gradients": (False, GRADIENTS),
    "optimizer": (False, OPTIMIZER),
    "both": (False, GRADIENTS | OPTIMIZER),
    "reference": (True, {}),
    "reference on host": (True, REFERENCE),
    "all on host": (True, GRADIENTS | OPTIMIZER | REFERENCE),
}
"""Whether there is a KL term, and settings of the trainer."""
TINY_VOCABULARY = 128


def save_model(options: argparse.Namespace, folder: Path) -> int:
    """Write a random model; return the size of its vocabulary."""
    if not options.tiny:
        save_random_model(options.shape, folder, dtype=torch.float32, device=options.device)
        return SHAPES[options.shape][0]
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=TINY_VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return TINY_VOCABULARY


def make_trainer(options: argparse.Namespace, folder: Path, arm: str) -> Trainer:
    has_reference, changes = ARMS[arm]
    return Trainer(
        folder,
        model=ModelSettings(device=options.device, dtype=options.dtype),
        settings=TrainerSettings.model_validate(
            {"learning_rate": 1e-4, "max_tokens_per_gpu": options.max_tokens, **changes}
        ),
        algorithm=AlgorithmSettings(kl_loss_coef=0.01 if has_reference else 0.0),
        temperature=1.0,
        max_steps=1000,
        seed=0,
    )


def planned_gib(options: argparse.Namespace, folder: Path, arm: str) -> float:
    """What the plan counts between two pieces, where gradients are on the device if they are not on the host."""
    has_reference, changes = ARMS[arm]
    is_cuda = options.device == "cuda"
    load = TrainingLoad(
        micro_tokens=options.max_tokens,
        published_itemsize=0,
        is_autocast=is_cuda and options.dtype == "bfloat16",
        is_fused=is_cuda,
        has_reference=has_reference,
        has_own_memory=is_cuda,
        keeps_gradients="gradients_device" not in changes,
        gradients_on_host="gradients_device" in changes,
        reference_on_host="reference_device" in changes,
        steps_on_host=is_cuda and "optimizer_device" in changes,
    )
    parts = training_parts(ModelShape.read(folder), load)
    return round(sum(part.num_bytes for part in parts if part.name != "process" and not part.is_temporary) / GIB, 3)


class Device:
    """What the device says about itself. A CPU says nothing about memory."""

    def __init__(self, name: str) -> None:
        self.is_cuda = name == "cuda"
        if self.is_cuda:
            torch.empty(1, device="cuda")
        self._free_at_first = self._free()

    def settle(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize()

    def give_cache_back(self) -> None:
        if self.is_cuda:
            torch.cuda.empty_cache()

    def memory(self) -> dict[str, float]:
        """GiB in use now."""
        if not self.is_cuda:
            return {}
        self.settle()
        self.give_cache_back()
        return {
            "between_gib": torch.cuda.memory_allocated() / GIB,
            "held_gib": torch.cuda.memory_reserved() / GIB,
            "used_gib": (self._free_at_first - self._free()) / GIB,
        }

    def _free(self) -> int:
        return int(torch.cuda.mem_get_info()[0]) if self.is_cuda else 0


def measure(
    options: argparse.Namespace, device: Device, folder: Path, arm: str, vocabulary: int
) -> tuple[dict[str, Any], list[torch.Tensor]]:
    start = time.perf_counter()
    trainer = make_trainer(options, folder, arm)
    device.settle()
    found: dict[str, Any] = {"start_s": round(time.perf_counter() - start, 2)}
    leaves = "gradients_device" in ARMS[arm][1]
    piece_s: list[list[float]] = []
    finish_s: list[float] = []
    memory: dict[str, float] = {}
    result = None
    for step in range(1 + options.steps):
        groups = make_groups(vocabulary, trainer.version, prompts=options.prompts, group_size=options.group_size)
        size = -(-len(groups) // options.pieces)
        taken = []
        for first in range(0, len(groups), size):
            device.settle()
            start = time.perf_counter()
            trainer.accumulate(groups[first : first + size])
            if leaves:
                device.give_cache_back()
            device.settle()
            taken.append(time.perf_counter() - start)
            if step:  # in the first one libraries and page-locked memory are taken
                for name, value in device.memory().items():
                    memory[name] = round(max(value, memory.get(name, 0.0)), 3)
        start = time.perf_counter()
        result = trainer.finish_step()
        device.settle()
        finish_s.append(time.perf_counter() - start)
        piece_s.append(taken)
    assert result is not None
    found |= memory | {
        "planned_gib": planned_gib(options, folder, arm),
        "peak_gib": result.metrics.get("perf/max_memory_allocated_gb"),
        "first_piece_s": round(piece_s[0][0], 3),
        "piece_s": round(median(seconds for taken in piece_s[1:] for seconds in taken), 4),
        "pieces_s": round(median(sum(taken) for taken in piece_s[1:]), 4),
        "finish_s": round(median(finish_s[1:]), 4),
        "grad_norm": result.metrics["actor/grad_norm"],
    }
    return found, [parameter.detach().cpu() for parameter in trainer.model.parameters()]


def largest_difference(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    return max(float((mine - theirs).abs().max()) for mine, theirs in zip(one, other, strict=True))


def measure_all(options: argparse.Namespace, folder: Path) -> dict[str, dict[str, Any]]:
    vocabulary, device = save_model(options, folder), Device(options.device)
    found: dict[str, dict[str, Any]] = {}
    compared: list[torch.Tensor] = []
    for arm in options.arms:
        row, weights = measure(options, device, folder, arm, vocabulary)
        if arm in ("plain", "reference"):
            compared = weights
        if compared:
            row["largest_difference"] = largest_difference(weights, compared)
        found[arm] = row
        print(f"{arm}: {row}", flush=True)
        del weights
        gc.collect()
        device.give_cache_back()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="1.5B")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--max_tokens", type=int, default=16384, help="trainer.max_tokens_per_gpu")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group_size", type=int, default=8)
    parser.add_argument("--pieces", type=int, default=4, help="pieces of a step")
    parser.add_argument("--steps", type=int, default=2, help="steps that count; one more comes before them")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tiny", action="store_true", help="a tiny model and few responses, to try the script")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.tiny:
        options.prompts, options.group_size, options.max_tokens = 4, 2, 512
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        arms = measure_all(options, Path(folder))
    if options.json:
        settings = {name: value for name, value in vars(options).items() if name != "json"}
        device = torch.cuda.get_device_name() if options.device == "cuda" else options.device
        report = {
            "settings": settings,
            "device": device,
            "torch": torch.__version__,
            "seconds": round(time.perf_counter() - start, 1),
            "arms": arms,
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
