"""The distribution of lengths when some responses were stopped before they ended.

A response that was stopped at ``length`` tokens would have become longer: its length is a lower bound (it is
right-censored). Leaving such responses out makes lengths look shorter than they are. The Kaplan-Meier estimate uses
them: at each length at which responses ended, the share that is longer is multiplied by

    1 - (responses that ended there) / (responses that had at least this length)

The estimate assumes that a response is not stopped because it is one that would become long. Schedules break this a
little: they stop the responses of long prompts more often (the estimate becomes shorter), and a prompt that starts
again is counted again (the estimate becomes longer).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthEstimate:
    lengths: tuple[int, ...]
    """The lengths at which responses ended, ascending."""
    longer: tuple[float, ...]
    """For each of them, the estimated share of all responses that are longer."""
    longest: int
    """The greatest length seen, of a response that ended or of one that was stopped."""
    num_ended: int
    num_censored: int

    @property
    def unseen_share(self) -> float:
        """Estimated share of responses that are longer than any that was seen to end; 0 if the longest one ended."""
        return self.longer[-1] if self.longer else 1.0

    @property
    def mean(self) -> float:
        """The mean length. If ``unseen_share`` is above 0 this is a lower bound (the mean restricted to ``longest``):
        responses longer than ``longest`` count as ``longest``."""
        edges = [0, *self.lengths, self.longest]
        return sum(
            share * (end - start) for share, (start, end) in zip((1.0, *self.longer), pairwise(edges), strict=True)
        )

    def percentile(self, share: float) -> int:
        """The smallest length that more than ``share`` of all responses do not exceed.

        If the estimate does not reach that far, ``longest``: a lower bound.
        """
        reached = (
            length for length, rest in zip(self.lengths, self.longer, strict=True) if rest < 1 - share - _ROUNDING
        )
        return next(reached, self.longest)


def kaplan_meier(ended: Mapping[int, int], censored: Mapping[int, int]) -> LengthEstimate:
    """Estimate the distribution of lengths.

    ``ended``: how many responses ended at each length. ``censored``: how many were stopped at each length. At least
    one response is needed.
    """
    at_risk = sum(ended.values()) + sum(censored.values())
    if not at_risk:
        raise ValueError("lengths can be estimated only from at least one response")
    share, lengths, longer = 1.0, [], []
    for length in sorted({*ended, *censored}):
        if ends := ended.get(length, 0):
            share *= 1 - ends / at_risk
            lengths.append(length)
            longer.append(share)
        at_risk -= ends + censored.get(length, 0)
    return LengthEstimate(
        lengths=tuple(lengths),
        longer=tuple(longer),
        longest=max((*ended, *censored)),
        num_ended=sum(ended.values()),
        num_censored=sum(censored.values()),
    )
