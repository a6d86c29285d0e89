"""DAPO's soft penalty for responses that come close to their token budget.

B sequences.

    length <= max - buffer           0
    max - buffer < length <= max     (max - buffer - length) / buffer
    max < length                     -1
"""

from __future__ import annotations

from torch import Tensor


def soft_penalty(lengths_B: Tensor, *, max_length: int, buffer_length: int) -> Tensor:
    """0 before the buffer, falling along a line to -1 at ``max_length``, -1 beyond."""
    if not 0 < buffer_length <= max_length:
        raise ValueError(f"buffer_length must be between 1 and max_length ({max_length}), got {buffer_length}")
    return ((max_length - buffer_length - lengths_B.double()) / buffer_length).clamp(-1.0, 0.0)
