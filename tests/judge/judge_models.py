"""Small random models to judge with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": None, "max_position_embeddings": 12_000,
    "initializer_range": 0.3,
}  # fmt: skip
KINDS = {
    "llama": (LlamaForCausalLM, LlamaConfig),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config),
}


def random_model(kind: str = "llama", dtype: torch.dtype = torch.float32, **changes: Any) -> PreTrainedModel:
    model, config = KINDS[kind]
    torch.manual_seed(3)
    return model(config(**SIZES | changes)).to(dtype).eval()


def reward_model(num_labels: int = 1) -> PreTrainedModel:
    torch.manual_seed(3)
    return LlamaForSequenceClassification(LlamaConfig(**SIZES, num_labels=num_labels)).eval()


def random_tokens(length: int, seed: int = 0) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, 64, length).astype(np.int32)
