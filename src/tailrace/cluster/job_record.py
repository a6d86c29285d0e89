"""What the scheduler knows about one job."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tailrace.cluster.demand.trace import DemandTrace, Segment
from tailrace.cluster.ids import JobId, NodeGroupId, TenantId
from tailrace.cluster.jobs import JobSpec, Needs, Stage
from tailrace.cluster.planning.timetable import Reservation

MAX_REST = 64
NUM_REMEMBERED = 8
"""Phases of which the length is remembered."""


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
    charged_device_s: float = 0.0
    """Device-seconds that its tenant was charged for when it was admitted."""
    displaced: Displaced | None = None
    """Where it was when its node group was lost, until it has another one."""
    phase: PhaseInProgress | None = None
    asked_at: float | None = None
    """When it asked for its newest phase."""
    num_phases: int = 0
    """Complete phases."""
    late_s: float = 0.0
    """Seconds that phases waited beyond their slack, since it has its present place."""
    is_between_operations: bool = False
    """Whether some operations of a phase have run, and others are still to be asked for."""
    seconds_in_phase: float = 0.0
    """Seconds that the operations of the present phase took so far."""
    late_in_phase_s: float = 0.0
    """Seconds that the present phase waited beyond its slack."""
    num_drifted: int = 0
    """Complete phases in a row that were later or longer than planned."""
    rest: int = 0
    """Phases until drift counts again. Planning a job again costs time, and often finds nothing better."""
    last_rest: int = 0
    ratios: list[float] = field(default_factory=list)
    """How many times as long as planned each of the newest phases was."""
    seated_at: float = 0.0
    reason: str = ""
    """Why it ended."""

    @property
    def id(self) -> JobId:
        return self.spec.id

    @property
    def tenant(self) -> TenantId:
        return self.spec.tenant

    @property
    def needs(self) -> Needs:
        return Needs(devices=self.spec.train_devices, state=self.spec.state, trace=self.trace)

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

    @property
    def segment(self) -> Segment | None:
        """The segment of its trace that its present or next phase belongs to."""
        return None if self.trace is None else self.trace.segments[self.num_phases % len(self.trace.segments)]

    def latest_start(self, now: float) -> float | None:
        """When its next phase must begin at the latest, so that it loses no time; None: not known."""
        if self.trace is None or self.asked_at is None or not self.num_phases:
            return None
        number = self.num_phases % len(self.trace.segments)
        segment, before = self.trace.segments[number], self.trace.segments[number - 1]
        asks_at = self.asked_at + (segment.offset_s - before.offset_s) % self.trace.period_s
        if len(self.trace.segments) == 1:
            asks_at = self.asked_at + self.trace.period_s
        return max(now, asks_at) + segment.slack_s

    def note_phase(self, seconds: float, late_s: float, off_s: float, drift: float) -> None:
        """Note a complete phase: how long it took, how late it was beyond its slack, and how far it was asked for from
        where it is planned."""
        if (segment := self.segment) is not None and self.trace is not None:
            self.ratios = [*self.ratios, seconds / segment.duration_s][-NUM_REMEMBERED:]
            excess_s = max(off_s, late_s + max(0.0, seconds - segment.duration_s))
            has_drifted = not self.rest and excess_s > drift * self.trace.period_s
            self.num_drifted = self.num_drifted + 1 if has_drifted else 0
            self.rest = max(0, self.rest - 1)
        self.num_phases += 1

    def give_rest(self, least: int) -> None:
        """Count no drift for some phases, each time for twice as many."""
        self.last_rest = self.rest = min(MAX_REST, max(least, 2 * self.last_rest))

    def wait_share(self, now: float) -> float:
        """Share of its time in its present place that it has waited, once it has been there for a whole period."""
        if self.seat is None or self.trace is None or now - self.seated_at < self.trace.period_s:
            return 0.0
        late_s = self.late_s
        if self.phase is not None and self.phase.lease is None:
            late_s += max(0.0, now - self.phase.asked_at - self.phase.slack_s)
        return late_s / (now - self.seated_at)

    def calm_at(self, most: float, now: float) -> float:
        """When this share of waiting will be at most ``most``, if no later phase waits. Infinite: that is known only
        when its present phase has its lease."""
        if self.wait_share(now) <= most:
            return now
        waits_from = math.inf
        if self.phase is not None and self.phase.lease is None:
            waits_from = self.phase.asked_at + self.phase.slack_s
        if most <= 0 or waits_from < now:
            return math.inf
        at = self.seated_at + self.late_s / most
        while self.late_s > most * (at - self.seated_at) or self.late_s / (at - self.seated_at) > most:
            at = math.nextafter(at, math.inf)  # at this time the share is not above ``most``, rounding included
        return at if at <= waits_from else math.inf

    def ends_at(self, now: float) -> float | None:
        """When it will end at its present pace; None: not known."""
        if self.trace is None or self.admitted_at is None:
            return None
        left = max(0.0, self.spec.steps - self.steps_done) * self.trace.step_s
        return now + left / max(1.0 - self.wait_share(now), 0.1)
