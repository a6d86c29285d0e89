"""Phases that jobs are expected to ask for. The state of the next one can be moved while the node group is idle."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tailrace.cluster.arbitration.setup_costs import JobState
from tailrace.cluster.ids import JobId, TenantId
from tailrace.cluster.job_spec import Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedPhase:
    """A job that neither waits nor computes will ask for its next phase."""

    owner: JobState
    """With the parts of its state that the phase will need."""
    later_parts: Parts = ()
    """Parts that any of its phases asks for."""
    tenant: TenantId
    asks_at: float
    """When it is expected to ask. In the past: it is late."""
    given_up_at: float
    """From then on nothing is expected any more: the job does something else than before."""


def next_expected(phases: Iterable[ExpectedPhase], resident: JobId | None, now: float) -> ExpectedPhase | None:
    """Return the phase that will be asked for first; None: nothing is expected. Of two that are expected at the same
    time, the one of the resident job comes first, because it needs no switch."""
    awaited = [phase for phase in phases if now < phase.given_up_at]
    return min(awaited, key=lambda phase: (phase.asks_at, phase.owner.job != resident, phase.owner.job), default=None)
