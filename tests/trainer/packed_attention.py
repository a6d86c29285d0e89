"""Rows without padding on a CPU: attention in plain torch, instead of torch's kernel for CUDA."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tailrace.trainer.model import varlen


def pack_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers that are made after this take rows without padding."""
    monkeypatch.setattr(varlen, "is_available", lambda *_: True)
    monkeypatch.setattr(varlen, "varlen_attn", plain_varlen_attn)


def plain_varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    row_ends: Tensor,
    _ends_of_keys: Tensor,
    _longest: int,
    _longest_of_keys: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
    **_options: Any,
) -> Tensor:
    assert window_size == (-1, 0)
    assert query.dtype == key.dtype == value.dtype
    places = torch.arange(len(query), device=query.device)
    row_of = torch.searchsorted(row_ends.long(), places, right=True)
    is_seen = (row_of[:, None] == row_of) & (places[:, None] >= places)
    states = [states.transpose(0, 1)[None] for states in (query, key, value)]
    found = F.scaled_dot_product_attention(*states, attn_mask=is_seen, scale=scale, enable_gqa=True)
    return found[0].transpose(0, 1)
