"""Things in a row are cut into pieces that cost little.

``pack`` is for attention over rows that are padded to the longest of their batch: ``rows * queries * keys`` scores and
a fixed overhead, also counted in scores. It finds the cheapest cut of the rows sorted by keys, then queries, most
first, so that no row is split, each appears once, and the result depends on the sizes alone: equal ones keep their
given order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def pack(sizes: Sequence[tuple[int, int]], *, overhead: int, max_scores: int | None = None) -> list[list[int]]:
    """Indices into ``sizes`` (queries, keys), one list per batch; one row alone may exceed ``max_scores``."""
    order = sorted(range(len(sizes)), key=lambda index: (-sizes[index][1], -sizes[index][0]))
    queries = np.array([sizes[index][0] for index in order], np.int64)
    keys = np.array([sizes[index][1] for index in order], np.int64)

    def price(starts: Indices, end: int) -> tuple[Indices, Indices]:
        most_queries = np.maximum.accumulate(queries[starts][::-1])[::-1]
        scores = (end - starts) * most_queries * keys[starts]
        return scores + overhead, scores

    return [order[start:end] for start, end in cheapest_cuts(len(order), price, max_size=max_scores)]


def cheapest_cuts(
    num_items: int, price: Callable[[Indices, int], tuple[Indices, Indices]], *, max_size: int | None = None
) -> list[tuple[int, int]]:
    """The cheapest cut of a row of items into pieces [start, end) of limited size; one item alone may be larger.

    ``price`` tells cost and size of the pieces that begin at each of some starts and have a common end; a piece inside
    another is not larger. A dynamic programme over the ends: best[end] is the least cost of the first ``end`` items.
    """
    best = np.zeros(num_items + 1, np.int64)
    best_start = np.zeros(num_items + 1, np.int64)
    first = 0
    for end in range(1, num_items + 1):
        starts = np.arange(first, end)
        costs, sizes = price(starts, end)
        if max_size is not None:
            num_too_large = min(int(np.count_nonzero(sizes > max_size)), len(starts) - 1)
            first += num_too_large
            starts, costs = starts[num_too_large:], costs[num_too_large:]
        costs = best[starts] + costs
        # The last of equal minima: the smallest final piece, a rule that does not depend on numpy's order.
        best_start[end] = end - 1 - int(np.argmin(costs[::-1]))
        best[end] = costs[best_start[end] - first]
    cuts: list[tuple[int, int]] = []
    end = num_items
    while end > 0:
        cuts.append((int(best_start[end]), end))
        end = int(best_start[end])
    return cuts[::-1]
