"""Sequences are put into micro-batches that waste little padding.

A micro-batch costs ``longest * number of sequences`` tokens (it is padded to its longest) plus a fixed overhead,
also counted in tokens. ``pack`` finds the cheapest cut of the sequences sorted by length, longest first, so that

* no micro-batch exceeds the token budget, unless it is a single sequence longer than the budget;
* no sequence is split, each appears once;
* the result depends on the lengths alone: equal lengths keep their given order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def pack(lengths: Sequence[int], *, max_tokens: int, overhead_tokens: int) -> list[list[int]]:
    """Indices into ``lengths``, one list per micro-batch."""
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
    if any(length < 1 for length in lengths):
        raise ValueError(f"every length must be at least 1, got {min(lengths)}")
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    cuts = _cheapest_cuts(np.array([lengths[index] for index in order], dtype=np.int64), max_tokens, overhead_tokens)
    return [order[start:end] for start, end in cuts]


def _cheapest_cuts(
    descending: np.ndarray[tuple[int], np.dtype[np.int64]], max_tokens: int, overhead: int
) -> list[tuple[int, int]]:
    """Dynamic programme over the ends of micro-batches: best[end] is the least cost of the first ``end`` sequences."""
    num_sequences = len(descending)
    best = np.zeros(num_sequences + 1, dtype=np.int64)
    best_start = np.zeros(num_sequences + 1, dtype=np.int64)
    starts = np.arange(num_sequences)
    for end in range(1, num_sequences + 1):
        padded = (end - starts[:end]) * descending[:end]
        cost = best[:end] + padded + overhead
        cost[:-1][padded[:-1] > max_tokens] = np.iinfo(np.int64).max
        # The last of equal minima: the smallest final micro-batch, a rule that does not depend on numpy's order.
        best_start[end] = end - 1 - int(np.argmin(cost[::-1]))
        best[end] = cost[best_start[end]]
    cuts: list[tuple[int, int]] = []
    end = num_sequences
    while end > 0:
        cuts.append((int(best_start[end]), end))
        end = int(best_start[end])
    return cuts[::-1]
