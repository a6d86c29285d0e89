"""What occupies a node group: a switch, then a lease, then perhaps a hold. At most one of them at a time."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.cluster.arbitration.requests import PhaseRequest
from tailrace.cluster.events import Direction
from tailrace.cluster.ids import JobId, TenantId


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """The resident job's state goes out, then the state of the request's job comes in."""

    request: PhaseRequest | None
    """None: the job left while the state of the one before it was still moving out."""
    began_at: float
    expected_s: float
    """Expected seconds of the whole turn: the switch and the operations."""
    direction: Direction
    """The transfer in progress..."""
    moving: JobId
    """...and whose state it moves."""
    transfer: int
    """Number of the transfer in progress. Reports about others, which were given up, do not end it."""
    moving_since: float
    moving_s: float
    """Expected seconds of the transfer."""
    prefetched_s: float = 0.0
    """Seconds of the load that a prefetch did in advance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The request's job computes."""

    request: PhaseRequest
    began_at: float
    """When its turn began, with the switch if there was one."""
    expected_s: float
    """Expected seconds of the whole turn."""
    granted_at: float
    execution_s: float
    """Expected seconds from the grant on."""
    has_prefetched: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The group stays idle, because a job will ask again at once."""

    job: JobId
    tenant: TenantId
    began_at: float
    until: float
    is_reserved: bool
    """The job's request comes next. Otherwise it competes with those that wait already."""


Turn = Switch | Lease | Held


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefetched:
    """A job's state that has been brought near to the devices, or is on its way."""

    job: JobId
    transfer: int
    since: float
    expected_s: float
    seconds: float | None = None
    """How long it took; None: still in progress."""

    def seconds_at(self, now: float) -> float:
        """Return how long the prefetch took, or has taken so far."""
        return max(0.0, now - self.since) if self.seconds is None else self.seconds
