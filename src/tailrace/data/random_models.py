"""Models with random weights and the shapes of known ones, to measure speed without a download. Needs Transformers."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SHAPES = {
    "135M": (49152, 576, 1536, 30, 9, 3),
    "1.5B": (151936, 1536, 8960, 28, 12, 2),
    "7B": (152064, 3584, 18944, 28, 28, 4),
}
"""Vocabulary, hidden size, inner size, layers, heads, key/value heads: SmolLM2-135M, Qwen2.5-1.5B and Qwen2.5-7B."""


def save_random_model(name: str, folder: Path, *, dtype: torch.dtype, device: str) -> None:
    """Write a Llama of this shape. ``device``: where its weights are drawn."""
    vocabulary, hidden, inner, layers, heads, kv_heads = SHAPES[name]
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    with torch.device(device):
        LlamaForCausalLM(config).to(dtype).save_pretrained(folder)
