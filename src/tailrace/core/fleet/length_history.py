"""Lengths of the responses of earlier rounds, and how long a response that has got so far will be in the end.

Aborted responses would have been longer, so they count as lower bounds (Kaplan-Meier estimate). Lengths are kept in
bins, so that the history stays small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

NUM_BINS = 64
"""Bins of equal width between 0 and the longest response."""
_MEMORY = 0.5
"""Factor by which the weight of a round shrinks with each later round of its kind: lengths change with the model."""


@dataclass(slots=True, kw_only=True)
class LengthHistory:
    """Weighted numbers of responses by bin."""

    ended: dict[int, float] = field(default_factory=dict)
    """Responses that ended."""
    cut: dict[int, float] = field(default_factory=dict)
    """Responses that were aborted."""

    def add(self, length: int, max_length: int, *, is_cut: bool) -> None:
        counts, number = self.cut if is_cut else self.ended, bin_of(length, max_length)
        counts[number] = counts.get(number, 0.0) + 1.0

    def take_over(self, newest: LengthHistory) -> None:
        """Add the responses of a round that has ended. Those before count less from now on."""
        for counts, more in ((self.ended, newest.ended), (self.cut, newest.cut)):
            for number in counts:
                counts[number] *= _MEMORY
            for number, count in more.items():
                counts[number] = counts.get(number, 0.0) + count

    def active(self) -> Sequence[float]:
        """Return, for each bin, the share of all responses that got as far as its beginning."""
        counts = [self.ended.get(number, 0.0) + self.cut.get(number, 0.0) for number in range(NUM_BINS)]
        total, left, found = sum(counts), sum(counts), []
        for count in counts:
            found.append(left / total if total else 0.0)
            left -= count
        return found

    def final_lengths(self, max_length: int) -> Sequence[float]:
        """Return, for each bin, the expected final length of a response that has reached it. Where nothing is known it
        is the longest."""
        expected = float(NUM_BINS)
        at_risk, found = 0.0, [0.0] * NUM_BINS
        for number in range(NUM_BINS - 1, -1, -1):
            ended = self.ended.get(number, 0.0)
            at_risk += ended + self.cut.get(number, 0.0)
            ends_here = ended / at_risk if at_risk else 0.0
            expected = ends_here * (number + 1) + (1 - ends_here) * expected
            found[number] = expected * max_length / NUM_BINS
        return found


def bin_of(length: int, max_length: int) -> int:
    """Return the bin of a length."""
    return min(NUM_BINS - 1, length * NUM_BINS // max(1, max_length))
