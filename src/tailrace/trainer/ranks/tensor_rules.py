"""Which models several ranks can train, and which the ranks of a tensor group can divide among themselves. Needs no
torch: a run is refused before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FAMILIES = ("llama", "qwen2", "qwen3")
"""``model_type`` of the models whose layers ``tensor_parallel.py`` knows."""


def check_ranks(config: Mapping[str, Any], num_ranks: int) -> None:
    """``ValueError`` if a model with this ``config.json`` cannot be trained by this many ranks."""
    has_windows = config.get("sliding_window") is not None and config.get("use_sliding_window", True)
    others = set(config.get("layer_types") or ()) - {"full_attention"}
    if num_ranks > 1 and (has_windows or others):
        what = f"layers of the kind {', '.join(sorted(others))}" if others else "a sliding window"
        raise ValueError(f"trainer.num_ranks is {num_ranks}, but a model with {what} is trained by one rank only")


def check(config: Mapping[str, Any], num_parts: int) -> None:
    """``ValueError`` if a model with this ``config.json`` cannot be divided into this many parts."""
    if num_parts == 1:
        return
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ValueError(
            f"trainer.tensor_parallel_size is {num_parts}, but the layers of a {family!r} model cannot be divided;"
            f" those of {', '.join(FAMILIES)} can"
        )
    num_heads = config["num_attention_heads"]
    counts = {
        "attention heads": num_heads,
        "key and value heads": config.get("num_key_value_heads") or num_heads,
        "columns in an MLP": config["intermediate_size"],
    }
    for name, count in counts.items():
        if count % num_parts:
            raise ValueError(
                f"trainer.tensor_parallel_size is {num_parts}, but the model has {count} {name},"
                f" which cannot be divided by {num_parts}"
            )
