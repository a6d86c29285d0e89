"""The order of waiting requests: the highest response ratio with setup (HRRS), a variant of it, and first come.

    W   seconds that the request has waited
    E   seconds that it will compute
    S   E, and the seconds of the switch if its job is not resident

A request that waits gains on the others, faster if it is short. At equal ratios, the one that needs no switch comes
first, then the smaller S, then the one that came first, then the smaller job id. So with equal S the first come is
first, and with equal W the smaller S.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import assert_never

from tailrace.cluster.arbitration.requests import PhaseRequest
from tailrace.cluster.settings import Ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPhase:
    """A waiting request with its predicted costs."""

    request: PhaseRequest
    execution_s: float
    setup_s: float
    needs_switch: bool

    @property
    def total_s(self) -> float:
        """S: seconds for which the group would be occupied."""
        return self.execution_s + self.setup_s


def response_ratio(waited_s: float, total_s: float) -> float:
    """Return (W + S) / S."""
    return math.inf if total_s <= 0 else (waited_s + total_s) / total_s


def execution_ratio(waited_s: float, execution_s: float, total_s: float) -> float:
    """Return (W + E) / S."""
    return math.inf if total_s <= 0 else (waited_s + execution_s) / total_s


def priority(candidate: WaitingPhase, ratio: Ratio, now: float) -> float:
    """Return the number by which ``ratio`` orders requests, highest first."""
    waited_s = now - candidate.request.asked_at
    match ratio:
        case Ratio.FIRST_COME:
            return waited_s
        case Ratio.RESPONSE:
            return response_ratio(waited_s, candidate.total_s)
        case Ratio.EXECUTION:
            return execution_ratio(waited_s, candidate.execution_s, candidate.total_s)
        case _:
            assert_never(ratio)


def rank(candidate: WaitingPhase, ratio: Ratio, now: float) -> tuple[float, bool, float, float, str]:
    """Return a key that sorts requests: the next one is the smallest."""
    request = candidate.request
    return (
        -priority(candidate, ratio, now),
        candidate.needs_switch,
        candidate.total_s,
        request.asked_at,
        request.job,
    )
