"""Models that vLLM cannot run here, found before it starts. Importing this file imports neither torch nor vllm.

Whether vLLM knows an architecture is not checked: importing vLLM takes long, and it says so when it starts.
"""

from __future__ import annotations

from pathlib import Path

from tailrace.engines.contract import Unsupported
from tailrace.store.model_config import read_model_config

CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)


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
