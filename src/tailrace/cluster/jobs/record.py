"""What the scheduler knows about one job.

Other rooms keep a part of their own in it: where it is (``groups/seat.py``), its phases (``phases/log.py``) and whether
they are what was planned (``rearranging/drift.py``). So what is known about a job goes when the job goes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tailrace.cluster.demand.trace import DemandSegment, DemandTrace
from tailrace.cluster.groups.seat import Displaced, Seat
from tailrace.cluster.ids import JobId, TenantId
from tailrace.cluster.job_spec import JobSpec, Parts, StateBytes
from tailrace.cluster.phases.log import PhaseLog
from tailrace.cluster.rearranging.drift import Drift


class Stage(StrEnum):
    """``QUEUED -> (PROFILING ->) RUNNING``. A job that has ended is forgotten."""

    QUEUED = "queued"
    PROFILING = "profiling"
    """Runs alone on a node group, because nothing is known about its phases yet."""
    RUNNING = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What decides where a job can be placed."""

    devices: int
    state: StateBytes
    host_parts: Parts
    trace: DemandTrace | None


@dataclass(slots=True, kw_only=True)
class JobRecord:
    spec: JobSpec
    number: int
    """Order of submission."""
    submitted_at: float
    stage: Stage = Stage.QUEUED
    trace: DemandTrace | None = None
    admitted_at: float | None = None
    charged_device_s: float = 0.0
    """Device-seconds that its tenant was charged for when it was admitted."""
    seat: Seat | None = None
    """None while it is queued, and after its node group was lost."""
    displaced: Displaced | None = None
    """Where it was when its node group was lost, until it has another one."""
    log: PhaseLog = field(default_factory=PhaseLog)
    drift: Drift = field(default_factory=Drift)

    # Questions

    @property
    def id(self) -> JobId:
        return self.spec.id

    @property
    def tenant(self) -> TenantId:
        return self.spec.tenant

    @property
    def needs(self) -> Needs:
        return Needs(
            devices=self.spec.train_devices, state=self.spec.state, host_parts=self.spec.host_parts, trace=self.trace
        )

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
            return float(self.log.num_phases)
        return self.log.num_phases * self.trace.steps / len(self.trace.segments)

    @property
    def segment_number(self) -> int:
        """Which phase of its period its present or next one is."""
        return 0 if self.trace is None else self.log.num_phases % len(self.trace.segments)

    @property
    def segment(self) -> DemandSegment | None:
        """The segment of its trace that its present or next phase belongs to."""
        return None if self.trace is None else self.trace.segments[self.segment_number]

    @property
    def asks_at(self) -> float | None:
        """When it asks for its next phase, if that comes as long after the one before it as in its trace; None: not
        known."""
        trace, asked_at, num_phases = self.trace, self.log.asked_at, self.log.num_phases
        if trace is None or asked_at is None or not num_phases:
            return None
        number = num_phases % len(trace.segments)
        segment, before = trace.segments[number], trace.segments[number - 1]
        if len(trace.segments) == 1:
            return asked_at + trace.period_s
        return asked_at + (segment.offset_s - before.offset_s) % trace.period_s

    def latest_start(self, now: float) -> float | None:
        """When its next phase must begin at the latest, so that it loses no time; None: not known."""
        asks_at, segment = self.asks_at, self.segment
        return None if asks_at is None or segment is None else max(now, asks_at) + segment.slack_s

    def wait_share(self, now: float) -> float:
        """Share of its time in its present place that it has waited, once it has been there for a whole period."""
        if self.seat is None or self.trace is None or now - self.log.seated_at < self.trace.period_s:
            return 0.0
        return self.log.wait_share(now)

    def wait_share_falls_at(self, most: float, now: float) -> float:
        """When this share of waiting will be at most ``most``, if no later phase waits. Infinite: that is known only
        when its present phase has its lease."""
        return now if self.wait_share(now) <= most else self.log.wait_share_falls_at(most, now)

    def ends_at(self, now: float) -> float | None:
        """When it will end at its present pace; None: not known."""
        if self.trace is None or self.admitted_at is None:
            return None
        left = max(0.0, self.spec.steps - self.steps_done) * self.trace.step_s
        return now + left / max(1.0 - self.wait_share(now), 0.1)

    # Notices

    def take_seat(self, seat: Seat, now: float) -> None:
        assert self.seat is None
        self.seat = seat
        self.log.take_place(now)

    def leave_seat(self) -> None:
        self.seat = None

    def lose_group(self, displaced: Displaced) -> None:
        """Its node group was lost, and with it what its lease covered."""
        self.displaced = displaced
        self.log.withdraw_lease()

    def find_group(self) -> None:
        """It has another node group."""
        self.displaced = None
