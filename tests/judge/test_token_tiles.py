"""Parts of a layer that compute a long sequence a piece at a time."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb

from judge.judge_models import random_model
from tailrace.judge import token_tiles
from tailrace.offload.layer_offload import decoder_layers

DTYPES = [torch.float32, torch.bfloat16]
LENGTH = 53


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(token_tiles, "TILE", 8)


def heads(count: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Queries or keys as attention makes them: a view of what a linear layer gave."""
    torch.manual_seed(seed)
    return torch.randn(1, LENGTH, count * 16).to(dtype).view(1, LENGTH, count, 16).transpose(1, 2)


def angles(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    angle = torch.arange(LENGTH)[:, None] * 10_000 ** (-torch.arange(16) % 8 / 8)
    return angle.cos()[None].to(dtype), angle.sin()[None].to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rotation_in_tiles_gives_the_same_bits(dtype: torch.dtype) -> None:
    given = heads(6, dtype, 0), heads(2, dtype, 1)
    expected = apply_rotary_pos_emb(*given, *angles(dtype))
    found = token_tiles.in_tiles(apply_rotary_pos_emb)(*given, *angles(dtype))
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride(), "attention would see another layout"
    assert found[0].data_ptr() == given[0].data_ptr(), "the queries were not written over"


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bfloat16
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_attention_with_a_tiled_rotation_gives_the_same_bits(
    kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    states = torch.randn(1, LENGTH, 32).to(dtype)
    found = []
    for is_tiled in (False, True):
        model = random_model(kind, dtype)
        layer = decoder_layers(model)[0]
        if is_tiled:
            token_tiles.tile_layer(layer)
            # Norms of Qwen3's queries are tiled too; their bits do not change either.
            assert layer.self_attn.forward.__func__ is not type(layer.self_attn).forward
        rotation = model.base_model.rotary_emb(states, torch.arange(LENGTH)[None])
        with torch.no_grad():
            found.append(layer.self_attn(hidden_states=states, position_embeddings=rotation, attention_mask=None)[0])
    assert torch.equal(*found)


class Largest(TorchDispatchMode):
    """Notes the most numbers that one operation has made memory for."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        old = {each.untyped_storage().data_ptr() for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        for each in tree_leaves(found):
            if isinstance(each, Tensor) and each.untyped_storage().data_ptr() not in old:
                self.numbers = max(self.numbers, math.prod(each.shape))
        return found


def test_rotation_in_tiles_needs_memory_for_one_tile() -> None:
    most = []
    for rotate in (apply_rotary_pos_emb, token_tiles.in_tiles(apply_rotary_pos_emb)):
        given, rotation = (heads(6, torch.float32, 0), heads(2, torch.float32, 1)), angles(torch.float32)
        with Largest() as largest:
            rotate(*given, *rotation)
        most.append(largest.numbers)
    assert most == [6 * LENGTH * 16, 6 * 8 * 16]


def test_short_sequences_are_rotated_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_tiles, "TILE", LENGTH)
    given = heads(6, torch.float32, 0), heads(2, torch.float32, 1)
    found = token_tiles.in_tiles(apply_rotary_pos_emb)(*given, *angles(torch.float32))
    assert found[0].data_ptr() != given[0].data_ptr()
