"""Length classes: an engine may keep its KV cache in rows of a few capacities, each sequence in the smallest it fits.

A decode step then attends class by class, to as many tokens in every row as the longest of the class has. So short and
long sequences beside each other cost more than their tokens alone: for each class that has rows, and for the padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SMALLEST_CLASS = 64


def length_classes(max_length: int) -> tuple[int, ...]:
    """Capacities: 64, 128, 256, ... and finally ``max_length`` itself."""
    sizes = []
    size = SMALLEST_CLASS
    while size < max_length:
        sizes.append(size)
        size *= 2
    return (*sizes, max_length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attended:
    """What one decode step attends to."""

    num_tokens: float
    """Padding included. As long as no sequence changes its class, every step adds one for each of them."""
    num_classes: int
    """Classes that have rows."""
    num_steps: float
    """After so many steps the first sequence has outgrown its class."""


def attended(lengths: Iterable[float], capacities: Sequence[int]) -> Attended:
    """``lengths``: tokens of each sequence; what is longer than the last capacity counts to the last class."""
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
