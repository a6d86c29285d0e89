"""What the jobs of a node group wait for. Every wait has a name, a start and a limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from tailrace.cluster.arbitration.ratios import WaitingPhase
from tailrace.cluster.arbitration.turns import Held, Lease, Prefetched, Switch, Turn
from tailrace.cluster.events import Direction
from tailrace.cluster.ids import NodeGroupId
from tailrace.core.run.waits import Wait

_PATIENCE = 10.0
"""Something that takes this many times as long as expected counts as lost..."""
_MIN_LIMIT_S = 60.0
"""...but not before this time, because short operations and transfers vary more."""


def turn_wait(turn: Turn | None, group: NodeGroupId) -> Wait | None:
    """Return what the group itself waits for; None: nothing that could be late."""
    match turn:
        case Lease(request=request):
            what = f"job {request.job}: its operations on group {group}"
            return Wait(what=what, since=turn.granted_at, limit_s=_limit_s(turn.execution_s))
        case Switch(request=request, moving=moving):
            owner = moving if request is None else request.job
            what = f"job {owner}: {turn.direction} of {moving} on group {group}"
            return Wait(what=what, since=turn.moving_since, limit_s=_limit_s(turn.moving_s))
        case Held() | None:
            return None
        case _:
            assert_never(turn)


def prefetch_wait(prefetched: Prefetched | None, group: NodeGroupId) -> Wait | None:
    """Return the wait for a prefetch in progress. Nobody is kept by it, but one that never ends should be seen."""
    if prefetched is None:
        return None
    what = f"job {prefetched.job}: prefetch of {prefetched.job} on group {group}"
    return Wait(what=what, since=prefetched.since, limit_s=_limit_s(prefetched.expected_s))


def request_waits(
    candidates: Sequence[WaitingPhase], turn: Turn | None, group: NodeGroupId, *, max_wait_s: float, is_up: bool
) -> list[Wait]:
    """Return a wait for each request. Its limit is the bound on waiting of ``group_queue``, where everything may also
    take ten times as long as expected."""
    occupied_s = 0.0 if turn is None or isinstance(turn, Held) else turn.expected_s
    limit_s = max_wait_s + _limit_s(occupied_s + sum(candidate.total_s for candidate in candidates))
    reason = _reason(turn) if is_up else "a node is lost"
    return [
        Wait(
            what=f"job {candidate.request.job}: its turn on group {group}; {reason}",
            since=candidate.request.asked_at,
            limit_s=limit_s,
        )
        for candidate in candidates
    ]


def _reason(turn: Turn | None) -> str:
    match turn:
        case Lease(request=request):
            return f"{request.job} computes"
        case Switch(direction=direction, moving=moving):
            return f"{moving} is moved {'out' if direction is Direction.OFFLOAD else 'in'}"
        case Held(job=job):
            return f"it is held for {job}"
        case None:
            return "it is free"
        case _:
            assert_never(turn)


def _limit_s(expected_s: float) -> float:
    return max(_MIN_LIMIT_S, _PATIENCE * expected_s)
