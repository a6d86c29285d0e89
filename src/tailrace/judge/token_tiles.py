"""Lets modules that see each token alone (norms, MLPs, rotation by position) compute a long sequence a part at a time.

An MLP needs some times its inner width for each token, a norm computes in fp32, and the rotation of queries makes four
tensors as large as the queries: for long sequences that is more memory than attention needs. Where a sequence is cut
depends on its own length alone.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

TILE = 2048
"""Tokens of a part: enough to keep a GPU busy."""
ROTATION = "apply_rotary_pos_emb"
"""Function of Transformers' modules that rotates queries and keys. Attention calls it by this name."""

Rotate = Callable[..., tuple[Tensor, Tensor]]


def tile_layer(layer: nn.Module) -> None:
    """Tile the norms, the MLP and the rotation of a decoder layer."""
    for name, module in layer.named_modules():
        last = name.rpartition(".")[2]
        if last == "mlp" or last.endswith("norm"):
            _tile(module)
        elif ROTATION in _names(module):
            _tile_rotation(module)


def _tile(module: nn.Module) -> None:
    whole = module.forward

    def forward(states: Tensor, *rest: Any, **named: Any) -> Any:
        """``states``: 1 x tokens x anything."""
        if states.shape[1] <= TILE or rest or named:
            return whole(states, *rest, **named)
        found = torch.empty_like(states)
        for start in range(0, states.shape[1], TILE):
            found[:, start : start + TILE] = whole(states[:, start : start + TILE])
        return found

    module.forward = forward


def _names(module: nn.Module) -> tuple[str, ...]:
    """Names that the module's own code calls; none if a decorator hides it."""
    code = getattr(type(module).forward, "__code__", None)
    return () if code is None else code.co_names


def _tile_rotation(attention: nn.Module) -> None:
    """Let this module call another rotation: the same code with another meaning of that one name."""
    forward = type(attention).forward
    assert isinstance(forward, FunctionType)
    names = {**forward.__globals__, ROTATION: in_tiles(forward.__globals__[ROTATION])}
    own = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
    own.__kwdefaults__ = forward.__kwdefaults__
    attention.forward = own.__get__(attention)


def in_tiles(whole: Rotate) -> Rotate:
    """The same numbers, bit for bit, written over the queries and keys of a long sequence."""

    def rotate(queries: Tensor, keys: Tensor, cos: Tensor, sin: Tensor, *rest: Any, **named: Any) -> Any:
        """``queries``, ``keys``: 1 x heads x tokens x width; ``cos``, ``sin``: 1 x tokens x width."""
        length = queries.shape[2]
        if length <= TILE or rest or named:
            return whole(queries, keys, cos, sin, *rest, **named)
        for start in range(0, length, TILE):
            part = slice(start, start + TILE)
            rotated = whole(queries[:, :, part], keys[:, :, part], cos[:, part], sin[:, part])
            queries[:, :, part], keys[:, :, part] = rotated
        return queries, keys

    return rotate
