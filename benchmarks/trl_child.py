"""One training by TRL's ``GRPOTrainer``, in a process of its own: ``python trl_child.py FOLDER HOW``.

HOW it generates: ``generate``, ``continuous`` or ``vllm``.

Reads the plan and its prompts from the folder, trains, writes ``report.json`` there. TRL is set up the way its users
would for speed: no checkpoints, no logging, no evaluation, no gradient checkpointing, and loss type ``dapo``, which is
the token mean over the whole batch.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import trl_reward
from datasets import Dataset
from transformers import TrainerCallback
from transformers.utils import logging
from trl import GRPOConfig, GRPOTrainer
from trl_plan import Plan, read_rows

MICRO_BATCH = 64
"""Responses per forward and backward pass. TRL pads all of a batch to its longest response before it cuts it up."""
LONGEST_PROMPT = 256


@dataclass
class Count:
    """What passed through the trainer, counted where it is generated and where it is trained."""

    samples_generated: int = 0
    tokens_generated: int = 0
    samples_trained: int = 0
    tokens_trained: int = 0
    samples_without_advantage: int = 0
    optimizer_steps: int = 0
    step_ends_s: list[float] = field(default_factory=list)
    """By this process's clock."""
    generation_s: float = 0.0
    """Seconds of generating and scoring, all steps together."""
    peak_gb: float | None = None
    """Most GB of tensors on the GPU in this process, vLLM's included."""
    rewards: list[float] = field(default_factory=list)
    """Mean of each batch."""


class CountingTrainer(GRPOTrainer):  # type: ignore[misc]
    count: Count

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        self.count.samples_trained += len(inputs["completion_mask"])
        self.count.tokens_trained += int(inputs["completion_mask"].sum())
        return super().compute_loss(model, inputs, *args, **kwargs)

    def _generate_and_score_completions(self, *args: Any, **kwargs: Any) -> Any:
        start = time.monotonic()
        found = super()._generate_and_score_completions(*args, **kwargs)
        self.count.generation_s += time.monotonic() - start
        return found


class StepClock(TrainerCallback):  # type: ignore[misc]
    def __init__(self, count: Count) -> None:
        self._count = count

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._count.optimizer_steps += 1
        self._count.step_ends_s.append(time.monotonic())


def counted(plan: Plan, count: Count) -> Any:
    function = getattr(trl_reward, plan.reward)

    def reward(completions: list[str], completion_ids: list[list[int]], **columns: Any) -> list[float]:
        scores: list[float] = function(completions=completions, **columns)
        count.samples_generated += len(completions)
        count.tokens_generated += sum(map(len, completion_ids))
        count.rewards.append(sum(scores) / len(scores))
        groups = [scores[start : start + plan.group_size] for start in range(0, len(scores), plan.group_size)]
        count.samples_without_advantage += sum(len(group) for group in groups if len(set(group)) == 1)
        return scores

    return reward


def configure(plan: Plan, folder: Path, path: str) -> GRPOConfig:
    batch = plan.prompts * plan.group_size
    micro_batch = next(size for size in range(min(MICRO_BATCH, batch), 0, -1) if batch % size == 0)
    return GRPOConfig(
        output_dir=str(folder / "trl"),
        # One optimizer step per generated batch, and every response in it once.
        max_steps=plan.steps,
        num_generations=plan.group_size,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=batch // micro_batch,
        steps_per_generation=batch // micro_batch,
        num_iterations=1,
        shuffle_dataset=False,
        max_completion_length=plan.max_response_length,
        temperature=plan.temperature,
        use_transformers_continuous_batching=path == "continuous",
        transformers_continuous_batching_config=continuous_batching(plan) if path == "continuous" else None,
        use_vllm=path == "vllm",
        vllm_mode="colocate",
        vllm_max_model_length=LONGEST_PROMPT + plan.max_response_length,
        loss_type="dapo",
        beta=0.0,
        epsilon=plan.clip_ratio_low,
        epsilon_high=plan.clip_ratio_high,
        learning_rate=plan.learning_rate,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        model_init_kwargs={"dtype": "float32"},
        bf16=plan.device == "cuda",
        use_cpu=plan.device == "cpu",
        gradient_checkpointing=False,
        save_strategy="no",
        report_to="none",
        logging_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        seed=plan.seed,
    )


def continuous_batching(plan: Plan, page_size: int = 32) -> dict[str, int]:
    """Room for as many responses as the other systems may have in flight; left alone it sizes itself for a GPU."""
    pages_each = -(-(LONGEST_PROMPT + plan.max_response_length) // page_size) + 1
    return {
        "page_size": page_size,
        "num_blocks": 2 * plan.max_running * pages_each,
        "max_batch_tokens": max(512, 2 * plan.max_running),
        "max_requests_per_batch": plan.max_running,
    }


def main(folder: Path, path: str) -> None:
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    plan, count = Plan.read(folder), Count()
    trainer = CountingTrainer(
        model=plan.checkpoint,
        reward_funcs=counted(plan, count),
        args=configure(plan, folder, path),
        train_dataset=Dataset.from_list(read_rows(folder)),
        callbacks=[StepClock(count)],
    )
    trainer.count = count
    trainer.train()
    if plan.device == "cuda":
        count.peak_gb = torch.cuda.max_memory_allocated() / 1e9
    (folder / "report.json").write_text(json.dumps(vars(count)), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
