"""What occupies a node group: a switch, then a lease, then perhaps a hold. At most one of them at a time."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.cluster.arbitration.expected import ExpectedPhase
from tailrace.cluster.arbitration.requests import PhaseRequest
from tailrace.cluster.arbitration.setup_costs import JobState
from tailrace.cluster.events import Direction
from tailrace.cluster.ids import JobId, TenantId
from tailrace.cluster.job_spec import Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What a switch is for: a request, or a phase that nobody has asked for yet. Neither: its job has left."""

    request: PhaseRequest | None = None
    expected: ExpectedPhase | None = None
    began_at: float
    expected_s: float
    """Expected seconds of the whole turn: the switch, and the operations of the request."""

    @property
    def owner(self) -> JobState:
        """The job whose state comes in."""
        if self.request is not None:
            return self.request.owner
        assert self.expected is not None, "the job has left"
        return self.expected.owner


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """The resident job's state goes out, then the state of another job comes in. If it moves in advance, whoever asks
    meanwhile, the expected job too, competes as soon as the transfer in progress is over."""

    errand: Errand
    direction: Direction
    """The transfer in progress..."""
    moving: JobId
    """...and whose state it moves..."""
    parts: Parts
    """...and which parts of it."""
    transfer: int
    """Number of the transfer in progress. Reports about others, which were given up, do not end it."""
    moving_since: float
    moving_s: float
    """Expected seconds of the transfer."""
    prefetched_s: float = 0.0
    """Seconds of the load that a prefetch did in advance."""

    @property
    def request(self) -> PhaseRequest | None:
        return self.errand.request

    @property
    def expected_s(self) -> float:
        return self.errand.expected_s

    @property
    def began_at(self) -> float:
        return self.errand.began_at

    @property
    def payer(self) -> TenantId | None:
        for asked in (self.errand.request, self.errand.expected):
            if asked is not None:
                return asked.tenant
        return None

    @property
    def charged_s(self) -> float:
        """Seconds that its tenant was charged for when it began."""
        return 0.0 if self.request is None else self.expected_s


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

    @property
    def payer(self) -> TenantId:
        return self.request.tenant

    @property
    def charged_s(self) -> float:
        return self.expected_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The group stays idle, because a job will ask again at once."""

    job: JobId
    tenant: TenantId
    began_at: float
    until: float
    is_reserved: bool
    """The job's request comes next. Otherwise it competes with those that wait already."""

    @property
    def payer(self) -> TenantId:
        return self.tenant

    @property
    def charged_s(self) -> float:
        return 0.0


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
