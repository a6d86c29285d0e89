"""Memory of the training process on its GPU."""

from __future__ import annotations

import torch

_GIB = 2**30


def take_peak(device: torch.device) -> dict[str, float]:
    """Most GiB that tensors used, and that torch held, since the last call. Empty on a CPU."""
    if device.type != "cuda":
        return {}
    found = {
        "perf/max_memory_allocated_gb": torch.cuda.max_memory_allocated(device) / _GIB,
        "perf/max_memory_reserved_gb": torch.cuda.max_memory_reserved(device) / _GIB,
    }
    torch.cuda.reset_peak_memory_stats(device)
    return found
