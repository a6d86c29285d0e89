"""Sizes of well-known models, so that a run can be planned before its model is downloaded.

The numbers are those of each model's ``config.json`` on Hugging Face. Variants of the same size have the same shape
(``-Instruct``, ``-Base``). ``tests/store/test_known_shapes.py`` compares the numbers of parameters with the published
ones.
"""

from __future__ import annotations

import re

from tailrace.sizing.model_shape import ModelShape

_QWEN2_5 = r"Qwen/Qwen2\.5-(?P<size>[\d.]+B)(-Instruct)?"
_QWEN3 = r"Qwen/Qwen3-(?P<size>[\d.]+B)(-Base)?"


def _qwen2_5(hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, *, is_tied: bool) -> ModelShape:
    return ModelShape(
        vocab_size=151936 if is_tied else 152064,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=hidden // heads,
        has_tied_embeddings=is_tied,
    )


def _qwen3(hidden: int, intermediate: int, layers: int, heads: int, *, is_tied: bool) -> ModelShape:
    return ModelShape(
        vocab_size=151936,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=8,
        head_dim=128,
        has_tied_embeddings=is_tied,
        has_qk_norm=True,
    )


_FAMILIES: dict[str, dict[str, ModelShape]] = {
    _QWEN2_5: {
        "0.5B": _qwen2_5(896, 4864, 24, 14, 2, is_tied=True),
        "1.5B": _qwen2_5(1536, 8960, 28, 12, 2, is_tied=True),
        "3B": _qwen2_5(2048, 11008, 36, 16, 2, is_tied=True),
        "7B": _qwen2_5(3584, 18944, 28, 28, 4, is_tied=False),
        "14B": _qwen2_5(5120, 13824, 48, 40, 8, is_tied=False),
        "32B": _qwen2_5(5120, 27648, 64, 40, 8, is_tied=False),
    },
    _QWEN3: {
        "0.6B": _qwen3(1024, 3072, 28, 16, is_tied=True),
        "1.7B": _qwen3(2048, 6144, 28, 16, is_tied=True),
        "4B": _qwen3(2560, 9728, 36, 32, is_tied=True),
        "8B": _qwen3(4096, 12288, 36, 32, is_tied=False),
        "14B": _qwen3(5120, 17408, 40, 40, is_tied=False),
        "32B": _qwen3(5120, 25600, 64, 64, is_tied=False),
    },
}


def known_shape(name: str) -> ModelShape | None:
    """The sizes of a model, by its Hugging Face id; None if they are not known."""
    for pattern, shapes in _FAMILIES.items():
        if found := re.fullmatch(pattern, name):
            return shapes.get(found["size"])
    return None


def known_names() -> list[str]:
    """Ids of the models that are known, without their variants."""
    prefixes = ("Qwen/Qwen2.5-", "Qwen/Qwen3-")
    return [f"{prefix}{size}" for prefix, shapes in zip(prefixes, _FAMILIES.values(), strict=True) for size in shapes]
