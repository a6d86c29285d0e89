"""Causal attention over sequences that lie side by side in one row, for layers of Transformers.

A layer is called with ``ends`` and ``longest`` beside its states. Without them its attention is what it is without us.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from tailrace.trainer.model import varlen

PACKED = "tailrace_packed"


def is_fast(model: PreTrainedModel, device: torch.device) -> bool:
    """Whether the device has a kernel for it. Elsewhere attention takes one sequence after the other."""
    config = model.config.get_text_config()
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return varlen.is_available(device, model.dtype, head_dim)


@contextmanager
def packed_attention(model: PreTrainedModel) -> Iterator[None]:
    """The model's layers take sequences side by side while the context is open."""
    config = model.config.get_text_config()
    before = config._attn_implementation
    config._attn_implementation = PACKED
    try:
        yield
    finally:
        config._attn_implementation = before


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **others: Any
) -> tuple[Tensor, None]:
    """Attention as Transformers calls it: 1 x heads x tokens x width."""
    ends: Tensor | None = others.pop("ends", None)
    longest = others.pop("longest", 0)
    if ends is None:
        return cast(tuple[Tensor, None], sdpa_attention_forward(module, query, key, value, attention_mask, **others))
    if not varlen.is_available(query.device, value.dtype, value.shape[-1]):
        return _one_by_one(module, query, key, value, ends, **others), None
    # In the precision of the value, which comes straight from a linear layer: rotation may have made the others wider.
    asked, seen, taken = (states[0].transpose(0, 1).to(value.dtype) for states in (query, key, value))
    return varlen.attend(asked, seen, taken, ends, longest, others.get("scaling"))[None], None


def _one_by_one(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, ends: Tensor, **others: Any) -> Tensor:
    places = ends.tolist()
    parts = [slice(start, end) for start, end in pairwise(places)]
    found = [
        sdpa_attention_forward(module, query[:, :, part], key[:, :, part], value[:, :, part], None, **others)[0]
        for part in parts
    ]
    return torch.cat(found, dim=1)


AttentionInterface.register(PACKED, _attend)
