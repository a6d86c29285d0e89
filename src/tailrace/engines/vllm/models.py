"""Models that vLLM cannot run here, found before it starts. Importing this file imports neither torch nor vllm.

Whether vLLM knows an architecture is not checked: importing vLLM takes long, and it says so when it starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tailrace.engines.contract import Unsupported
from tailrace.store.model_config import read_model_config

_HEADS, _KV_HEADS, _MLP = "num_attention_heads", "num_key_value_heads", "intermediate_size"
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)


def parts_refusal(
    config: Mapping[str, Any], num_parts: int, *, setting: str = "rollout.tensor_parallel_size"
) -> str | None:
    """Why vLLM cannot divide a model with this ``config.json`` among this many devices; None if it can. ``setting``:
    what asks for it."""
    counts = {"attention heads": config.get(_HEADS), "columns in an MLP": config.get(_MLP)}
    num_kv_heads = config.get(_KV_HEADS) or config.get(_HEADS)
    if num_kv_heads and num_parts % num_kv_heads:  # otherwise several devices hold the same one
        counts["key and value heads"] = num_kv_heads
    for name, count in counts.items():
        if count and count % num_parts:
            return f"{setting} is {num_parts}, but the model has {count} {name}, which cannot be divided by {num_parts}"
    return None


def check_on_cpu(checkpoint: Path) -> None:
    """``Unsupported`` if vLLM's attention on CPUs does not have the model's head size.

    vLLM itself would start, and fail with the first request.
    """
    config = read_model_config(checkpoint)
    num_heads = config.get("num_attention_heads")
    size = config.get("head_dim") or (config.get("hidden_size", 0) // num_heads if num_heads else None)
    if size is not None and size not in CPU_HEAD_SIZES:
        sizes = ", ".join(map(str, CPU_HEAD_SIZES))
        raise Unsupported(f"the vllm engine supports head sizes of {sizes} on a CPU, but the model has {size}")
