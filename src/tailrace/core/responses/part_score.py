"""The score of a response, made from its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tailrace.core.outcomes import Outcome, Part

_ORDER = {part: number for number, part in enumerate(Part)}


class PartScore(NamedTuple):
    part: Part
    outcome: Outcome
    score: float


def combined(parts: Sequence[PartScore]) -> tuple[Outcome, float]:
    """Return the outcome and the score of a response whose parts are all there, in any order: the sum, or the outcome
    of the first part that failed."""
    ordered = sorted(parts, key=lambda each: _ORDER[each.part])  # so that the sum has the same bits in every order
    for each in ordered:
        if each.outcome not in (Outcome.OK, Outcome.ABSTAINED):
            return each.outcome, 0.0
    scores = [each.score for each in ordered if each.outcome is Outcome.OK]
    return (Outcome.OK, sum(scores)) if scores else (Outcome.INVALID, 0.0)
