"""What the scheduler knows about one job."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.cluster.demand.trace import DemandTrace
from tailrace.cluster.ids import JobId, NodeGroupId, TenantId
from tailrace.cluster.jobs import JobSpec, Stage
from tailrace.cluster.planning.timetable import Reservation


@dataclass(slots=True, kw_only=True)
class PhaseInProgress:
    """A phase that was asked for and has not ended."""

    asked_at: float
    operations_s: tuple[float, ...]
    slack_s: float
    lease: int | None = None
    """Number of its lease; None: it waits."""
    num_granted: int = 0
    """Operations that the lease covers."""


@dataclass(slots=True, kw_only=True)
class Seat:
    """A job's place on a node group."""

    group: NodeGroupId
    is_dedicated: bool
    reservation: Reservation | None = None
    """Its slots in the timetable; None: its phases are not planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Displaced:
    group: NodeGroupId
    at: float


@dataclass(slots=True, kw_only=True)
class JobRecord:
    spec: JobSpec
    number: int
    """Order of submission."""
    submitted_at: float
    stage: Stage = Stage.QUEUED
    trace: DemandTrace | None = None
    seat: Seat | None = None
    """None while it is queued, and after its node group was lost."""
    admitted_at: float | None = None
    displaced: Displaced | None = None
    """Where it was when its node group was lost, until it has another one."""
    phase: PhaseInProgress | None = None
    asked_at: float | None = None
    """When it asked for its newest phase."""
    num_phases: int = 0
    """Complete phases."""
    late_s: float = 0.0
    """Seconds that phases waited beyond their slack."""
    is_between_operations: bool = False
    """Whether some operations of a phase have run, and others are still to be asked for."""
    seconds_in_phase: float = 0.0
    """Seconds that the operations of the present phase took so far."""
    late_in_phase_s: float = 0.0
    """Seconds that the present phase waited beyond its slack."""
    num_drifted: int = 0
    """Complete phases in a row that were later or longer than planned."""
    phase_seconds: list[float] = field(default_factory=list)
    """Seconds of the newest phases."""
    wants_refit: bool = False
    """Whether its place is to be planned again between two phases."""
    reason: str = ""
    """Why it ended."""

    @property
    def id(self) -> JobId:
        return self.spec.id

    @property
    def tenant(self) -> TenantId:
        return self.spec.tenant

    @property
    def is_live(self) -> bool:
        return self.stage in (Stage.PROFILING, Stage.RUNNING)

    @property
    def duty(self) -> float:
        """Share of the time in which it uses its group. A job that nobody has profiled may need all of it."""
        return 1.0 if self.trace is None else self.trace.duty

    @property
    def steps_done(self) -> float:
        if self.trace is None:
            return float(self.num_phases)
        return self.num_phases * self.trace.steps / len(self.trace.segments)

    def withdraw_lease(self) -> None:
        """What the lease covered did not happen: the phase waits again."""
        if self.phase is not None:
            self.phase.lease, self.phase.num_granted = None, 0

    def latest_start(self, now: float) -> float | None:
        """When its next phase must begin at the latest, so that it loses no time; None: not known."""
        if self.trace is None or self.asked_at is None:
            return None
        segment = self.trace.segments[self.num_phases % len(self.trace.segments)]
        asks_at = self.asked_at + self.trace.period_s / len(self.trace.segments)
        return max(now, asks_at) + segment.slack_s

    def note_drift(self, late_s: float, seconds: float, share: float) -> None:
        """Note a complete phase: how late it began beyond its slack, and how long it took."""
        if self.trace is None:
            return
        planned_s = max(segment.duration_s for segment in self.trace.segments)
        excess_s = late_s + max(0.0, seconds - planned_s)
        self.num_drifted = self.num_drifted + 1 if excess_s > share * self.trace.period_s else 0

    def wait_share(self, now: float) -> float:
        """Share of its time that it has waited so far, once it has seen a whole period."""
        if self.admitted_at is None or self.trace is None or now - self.admitted_at < self.trace.period_s:
            return 0.0
        return self.late_s / (now - self.admitted_at)

    def ends_at(self, now: float) -> float | None:
        """When it will end at its present pace; None: not known."""
        if self.trace is None or self.admitted_at is None:
            return None
        left = max(0.0, self.spec.steps - self.steps_done) * self.trace.step_s
        return now + left / max(1.0 - self.wait_share(now), 0.1)
