"""Length classes: an engine may keep its KV cache in rows of a few capacities. A sequence has the smallest row it fits.

A decode step then computes attention class by class, and pads every row to the longest sequence of its class. So a
batch of short and long sequences costs more than its tokens alone: a cost for each class in use, and the padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SMALLEST_CLASS = 64


def length_classes(max_length: int) -> tuple[int, ...]:
    """Return the capacities: 64, 128, 256, ... and finally ``max_length`` itself."""
    sizes = []
    size = SMALLEST_CLASS
    while size < max_length:
        sizes.append(size)
        size *= 2
    return (*sizes, max_length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attended:
    """What the attention of one decode step covers."""

    num_tokens: float
    """Tokens, padding included. Each step adds one per sequence, until a sequence changes its class."""
    num_classes: int
    """Classes in use."""
    num_steps: float
    """Steps until the first sequence outgrows its class."""


def attended(lengths: Iterable[float], capacities: Sequence[int]) -> Attended:
    """Return what a step covers. ``lengths``: tokens of each sequence. One that is longer than the last capacity counts
    in the last class."""
    rows: dict[int, list[float]] = {}
    for length in lengths:
        num_too_small = sum(capacity < length for capacity in capacities[:-1])
        rows.setdefault(num_too_small, []).append(length)
    longest = {index: max(own) for index, own in rows.items()}
    left = [capacities[index] - length + 1 for index, length in longest.items() if index < len(capacities) - 1]
    return Attended(
        num_tokens=sum(len(own) * longest[index] for index, own in rows.items()),
        num_classes=len(rows),
        num_steps=min(left, default=float("inf")),
    )
