"""Which waiting request gets the node group next.

1. Requests that have waited longer than ``max_wait_s``, in the order in which they came.
2. Otherwise, requests of the tenant whose turn it is. Among these,
   a. those that would be over before another job of the group must start, so that they make nobody slower,
   b. then those with the highest ratio.

First come, first served is meant to be exactly that, for comparison: step 2a does not apply to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tailrace.cluster.arbitration.fair_share import FairShare
from tailrace.cluster.arbitration.ratios import WaitingPhase, rank
from tailrace.cluster.arbitration.requests import PhaseRequest
from tailrace.cluster.ids import JobId
from tailrace.cluster.settings import ClusterRules, Ratio


def is_overdue(request: PhaseRequest, rules: ClusterRules, now: float) -> bool:
    return now - request.asked_at > rules.max_wait_s


def choose(
    candidates: Sequence[WaitingPhase],
    *,
    shares: FairShare,
    latest_starts: Mapping[JobId, float],
    rules: ClusterRules,
    now: float,
) -> WaitingPhase | None:
    """Return the candidate that comes next; None if there are none.

    ``latest_starts``: when other jobs, which do not wait yet, must start in order not to become slower.
    """
    in_order = sorted(candidates, key=lambda candidate: (candidate.request.asked_at, candidate.request.job))
    if not in_order:
        return None
    if is_overdue(in_order[0].request, rules, now):
        return in_order[0]
    tenant = shares.pick(candidate.request.tenant for candidate in in_order)
    starts = dict(latest_starts) | {each.request.job: each.request.latest_start for each in in_order}

    def key(candidate: WaitingPhase) -> tuple[bool, tuple[float, bool, float, float, str]]:
        is_late = rules.ratio is not Ratio.FIRST_COME and not _delays_nobody(candidate, starts, now)
        return is_late, rank(candidate, rules.ratio, now)

    return min((each for each in in_order if each.request.tenant == tenant), key=key)


def _delays_nobody(candidate: WaitingPhase, starts: Mapping[JobId, float], now: float) -> bool:
    job = candidate.request.job
    next_start = min((start for other, start in starts.items() if other != job), default=math.inf)
    return now + candidate.total_s <= next_start
