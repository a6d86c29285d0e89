"""Causal attention over rows of different lengths that lie side by side, without padding: torch's own kernel.

It exists on CUDA for bfloat16 and float16.
"""

from __future__ import annotations

import inspect

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

# The kernel takes fewer key and value heads than query heads. Versions of torch after 2.11 want to be told of it.
_SHARED_HEADS = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}


def is_available(device: torch.device, dtype: torch.dtype | None, head_dim: int | None) -> bool:
    """``head_dim``: None if heads differ in width, which the kernel cannot do."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16) or head_dim is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0) and head_dim % 8 == 0 and head_dim <= 256


def attend(query: Tensor, key: Tensor, value: Tensor, row_ends: Tensor, longest: int, scale: float | None) -> Tensor:
    """Attention of tokens x heads x width. ``row_ends``: 0, then where each row ends; ``longest``: length of
    the longest row."""
    ends, lengths = (row_ends, row_ends), (longest, longest)
    found: Tensor = varlen_attn(query, key, value, *ends, *lengths, scale=scale, window_size=(-1, 0), **_SHARED_HEADS)
    return found
