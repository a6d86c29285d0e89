"""The experts of a segment's tokens as bytes.

    layers (2) | experts per token (2) | bytes per number (1) | numbers, each an expert + 1; 0: unknown

There is a number for each token, layer and chosen expert. One byte each is enough for most mixtures.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from tailrace.store.segment import Routing

_SHAPE = struct.Struct("<HHB")
_NUMBERS: dict[int, np.dtype[Any]] = {1: np.dtype("u1"), 2: np.dtype("<u2")}


def pack(routing: Routing) -> bytes:
    """Bytes of an array of tokens x layers x experts per token."""
    _, layers, chosen = routing.shape
    size = 1 if routing.max(initial=0) < 255 else 2
    return _SHAPE.pack(layers, chosen, size) + (routing + 1).astype(_NUMBERS[size]).tobytes()


def unpack(data: bytes | memoryview, num_tokens: int) -> Routing:
    layers, chosen, size = _SHAPE.unpack_from(data)
    numbers = np.frombuffer(data, _NUMBERS[size], num_tokens * layers * chosen, offset=_SHAPE.size)
    experts: Routing = numbers.reshape(num_tokens, layers, chosen).astype(np.int16)
    experts -= 1
    return experts
