"""Causal attention over rows of different lengths that lie side by side, without padding: torch's own kernel.

It exists on CUDA for bfloat16 and float16. Its interface differs between versions of torch.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch
from torch import Tensor


@cache
def _causal_options() -> dict[str, Any] | None:
    """How this version of torch is told that attention is causal; None: it has no such kernel."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    known = inspect.signature(varlen_attn).parameters
    return {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}


@cache
def _shares_heads() -> bool:
    """Whether this version's kernel takes fewer key and value heads than query heads."""
    from torch.nn.attention.varlen import varlen_attn

    return "enable_gqa" in inspect.signature(varlen_attn).parameters


def is_available(device: torch.device, dtype: torch.dtype | None, head_dim: int) -> bool:
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16) or _causal_options() is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0) and head_dim % 8 == 0 and head_dim <= 256


def in_its_precision(*states: Tensor) -> tuple[Tensor, ...]:
    """The states in the precision in which attention is computed, so that copies of them are no larger than needed."""
    return tuple(part.to(torch.get_autocast_dtype("cuda")) for part in states)


def attend(query: Tensor, key: Tensor, value: Tensor, row_ends: Tensor, longest: int, scale: float | None) -> Tensor:
    """Attention of tokens x heads x width. ``row_ends``: 0, then where each row ends; ``longest``: length of
    the longest row."""
    from torch.nn.attention.varlen import varlen_attn

    width, num_shared = query.shape[-1], query.shape[1] // key.shape[1]
    if scale is not None and scale != width**-0.5:
        query = query * (scale * width**0.5)
    options = dict(_causal_options() or {})
    if num_shared > 1 and _shares_heads():
        options["enable_gqa"] = True
    elif num_shared > 1:
        key, value = key.repeat_interleave(num_shared, dim=1), value.repeat_interleave(num_shared, dim=1)
    states = [states.contiguous() for states in (query, key, value)]
    found: Tensor = varlen_attn(*states, row_ends, row_ends, longest, longest, **options)
    return found
