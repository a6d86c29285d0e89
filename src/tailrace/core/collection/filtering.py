"""How many additional prompts a short round launches because dynamic sampling will filter some of them.

The share of filtered groups is estimated from earlier rounds. Recent rounds count more, because the share changes as
the model learns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tailrace.core.schedule.schedule import MAX_GROWTH

_MEMORY = 0.8
"""Factor by which the weight of a round shrinks with each later round."""


@dataclass(slots=True, kw_only=True)
class FilteredShare:
    """Weighted numbers of scored and of filtered training groups."""

    num_concluded: float = 0.0
    num_filtered: float = 0.0

    def add(self, *, is_filtered: bool) -> None:
        """Count a scored training group."""
        self.num_concluded += 1
        self.num_filtered += is_filtered

    def fade(self) -> None:
        """Reduce the weight of all groups so far, at the end of a round."""
        self.num_concluded *= _MEMORY
        self.num_filtered *= _MEMORY

    def expected(self, count: int) -> int:
        """Return how many groups will be filtered while ``count`` groups pass, if the share stays the same. 0 until
        ``count`` groups have been scored. ``count``: at least 1."""
        if self.num_concluded < count:
            return 0
        share = min(self.num_filtered / self.num_concluded, 1 - 1 / MAX_GROWTH)
        return math.ceil(count * share / (1 - share))
