"""After how many optimizer steps a job's pattern repeats.

Steps of a job need not be alike: tail batching ends with one long step in five. If steps repeat every p steps, then all
steps at the same place of the pattern (i, i + p, i + 2p, ...) differ only by noise.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

MAX_STEPS = 16
NOISE = 0.1
"""Standard deviation, as a share of the mean, that counts as noise in any case."""
VARIANCE_RATIO = 3.0
"""A pattern is as good as another one if the variance that it leaves is at most this many times as large. Variances of
a few values differ by less than that by chance."""


def period_in_steps(steps: Sequence[Sequence[float]], max_steps: int = MAX_STEPS) -> int:
    """Least number of steps that explains the steps about as well as any other number up to ``max_steps``.

    Each step is a row of seconds: of the step itself and of its segments, say. Rows have the same length. A number p
    explains a column if the variance between steps at the same place is at most ``NOISE`` squared (for a column whose
    mean is 1), or at most ``VARIANCE_RATIO`` times the least that any number leaves. p must explain all columns; if no
    number does, the one that comes nearest is returned. Only patterns that were seen at least twice are considered.
    """
    if len({len(row) for row in steps}) > 1:
        raise ValueError("all steps must have the same number of values")
    columns = [_scaled(column) for column in zip(*steps, strict=True)]
    lengths = range(1, max(1, min(max_steps, len(steps) // 2)) + 1)
    excess = dict.fromkeys(lengths, 0.0)
    for column in columns:
        left = {length: _variance_left(column, length) for length in lengths}
        allowed = max(NOISE**2, VARIANCE_RATIO * min(left.values()))
        excess = {length: max(excess[length], left[length] / allowed) for length in lengths}
    return next((length for length in lengths if excess[length] <= 1), min(lengths, key=lambda p: excess[p]))


def _scaled(column: Sequence[float]) -> list[float]:
    mean = statistics.fmean(column)
    return [value / mean if mean else 0.0 for value in column]


def _variance_left(column: Sequence[float], length: int) -> float:
    """Variance between values at the same place of a pattern of this length."""
    if len(column) <= length:
        return 0.0
    total = 0.0
    for place in range(length):
        values = column[place::length]
        mean = statistics.fmean(values)
        total += sum((value - mean) ** 2 for value in values)
    return total / (len(column) - length)
