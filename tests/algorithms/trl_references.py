"""TRL's own trainers, given rollouts instead of generating them: what they compute from those is the reference.

Nothing of TRL's arithmetic is replaced: advantages and importance ratios come out of its
``_generate_and_score_completions`` and losses out of its ``_compute_loss``, as in a TRL run. ``use_vllm`` only says
that rollout log-probs are known.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from tailrace.data.models import resolve_model

SCORES = [1.0, 0.0, 0.0, 3.0, 2.0, 2.5, 0.0, 1.0]
GROUP_SIZE = 4
PROMPTS = [{"prompt": prompt} for prompt in ("1+1=", "2+1=") for _ in range(GROUP_SIZE)]
COMPLETIONS = [[3, 4, 5], [9, 3, 8, 4, 4], [7, 6], [5, 5, 6, 4], [3, 9, 9, 8, 5, 6], [4], [8, 7, 3], [6, 5, 4, 3, 9]]
TOOL_MASK = [[1, 0, 1], [1, 1, 1, 0, 1], [1, 1], [1, 1, 1, 1], [1, 1, 0, 0, 1, 1], [1], [1, 1, 1], [1, 1, 1, 1, 0]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """What TRL made of the given completions."""

    inputs: dict[str, Any]
    mask_BT: Tensor

    @property
    def old_logprobs_BT(self) -> Tensor:
        return self.inputs["old_per_token_logps"]

    @property
    def behaviour_logprobs_BT(self) -> Tensor:
        return self.inputs["sampling_per_token_logps"]


class GivenGrpo(GRPOTrainer):
    """A GRPOTrainer whose completions and rollout log-probs are given."""

    logprobs: list[list[float]]

    def _generate(self, prompts: list[str]) -> tuple[Any, ...]:
        prompt_ids = [self.processing_class(prompt)["input_ids"] for prompt in prompts]
        return prompt_ids, COMPLETIONS, TOOL_MASK, [""] * len(prompts), self.logprobs, {}, None, None


class GivenRloo(RLOOTrainer):
    def _generate(self, prompts: list[str]) -> tuple[Any, ...]:
        prompt_ids = [self.processing_class(prompt)["input_ids"] for prompt in prompts]
        return prompt_ids, COMPLETIONS, [""] * len(prompts)


def given_scores(prompts: list[str], completions: list[str], **columns: object) -> list[float]:
    return SCORES


def _settings(output_dir: Path) -> dict[str, Any]:
    return {
        "output_dir": str(output_dir),
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "disable_tqdm": True,
        "per_device_train_batch_size": len(PROMPTS),
        "num_generations": GROUP_SIZE,
        "num_generations_eval": GROUP_SIZE,
        "per_device_eval_batch_size": len(PROMPTS),
        "max_completion_length": 8,
    }


def grpo_trainer(output_dir: Path, **settings: Any) -> GivenGrpo:
    trainer = GivenGrpo(
        model=str(resolve_model("tiny-arith")),
        reward_funcs=given_scores,
        args=GRPOConfig(**_settings(output_dir) | settings),
        train_dataset=Dataset.from_list(PROMPTS),
    )
    # Evaluation mode: losses are not divided by a number of accumulation steps that only a running loop knows.
    trainer.model.eval()
    return trainer


def rloo_advantages(output_dir: Path) -> Tensor:
    trainer = GivenRloo(
        model=str(resolve_model("tiny-arith")),
        reward_funcs=given_scores,
        args=RLOOConfig(**_settings(output_dir), beta=0.0, normalize_advantages=False),
        train_dataset=Dataset.from_list(PROMPTS),
    )
    trainer.model.eval()
    return trainer._generate_and_score_completions([dict(row) for row in PROMPTS])["advantages"]


def rollouts(trainer: GivenGrpo, *, noise: float) -> Rollouts:
    """Completions as if sampled from a policy whose log-probs are ``noise`` away from the model's."""
    trainer.use_vllm = True
    trainer.logprobs = [[-1.0] * len(tokens) for tokens in COMPLETIONS]
    first = trainer._generate_and_score_completions([dict(row) for row in PROMPTS])
    generator = torch.Generator().manual_seed(1)
    moved_BT = first["old_per_token_logps"]
    moved_BT = moved_BT + noise * torch.randn(moved_BT.shape, generator=generator)
    trainer.logprobs = [row[: len(tokens)].tolist() for row, tokens in zip(moved_BT, COMPLETIONS, strict=True)]
    inputs = trainer._generate_and_score_completions([dict(row) for row in PROMPTS])
    trainer.use_vllm = False
    return Rollouts(inputs=inputs, mask_BT=(inputs["completion_mask"] * inputs["tool_mask"]).bool())


def logprobs(trainer: GivenGrpo, found: Rollouts) -> Tensor:
    """The model's log-probs of the completions, with gradient."""
    inputs = found.inputs
    scored = trainer._get_per_token_logps_and_entropies(
        trainer.model,
        torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
        torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
        inputs["completion_ids"].size(1),
    )
    return scored[0]
