"""The rearranging room: which jobs are planned again, and which could make room for one that waits."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.cluster.demand.trace import DemandTrace
from tailrace.cluster.ids import JobId
from tailrace.cluster.jobs.record import JobRecord
from tailrace.cluster.rearranging.measured import DriftLimits
from tailrace.cluster.settings import ClusterRules


@dataclass(slots=True, kw_only=True)
class Rearranging:
    """State of the rearranging room. What was seen of the phases of one job is in its record (``drift.py``)."""

    to_refit: set[JobId] = field(default_factory=set)
    """Jobs whose place is to be planned again between two phases."""
    in_the_way: set[JobId] = field(default_factory=set)
    """Jobs that are alone on a group which another one waits for, and compute (``making_room.py``)."""
    room_searched: tuple[object, ...] = ()
    """The newest opening, the number of groups begun, the free rollout devices and the claims when a lone job was last
    looked for that could make room."""

    # Questions

    def is_in_the_way(self, job: JobId) -> bool:
        return job in self.in_the_way

    # Notices

    def job_profiled(self, job: JobRecord) -> None:
        """The job has another trace."""
        job.drift.start_again()
        if job.is_live:
            self.to_refit.add(job.id)

    def phase_completed(self, job: JobRecord, rules: ClusterRules) -> None:
        """Compare the phase of the job that is complete now, and the period before it, with its trace."""
        log, plan, segment = job.log, job.trace, job.segment
        if plan is None or segment is None or log.asked_at is None:
            return
        number = log.num_phases % len(plan.segments)
        seconds, late_s = log.seconds_in_phase, log.late_in_phase_s
        job.drift.measured.note_phase(
            number, asked_at=log.asked_at, late_s=late_s, seconds=seconds, place_since=log.seated_at
        )
        job.drift.note_demand(plan, limits_of(rules))
        off_s = max(_seconds_off(job, plan, number, rules.slot_s), late_s + max(0.0, seconds - segment.duration_s))
        is_last = number == len(plan.segments) - 1
        job.drift.note_place(is_off=off_s > rules.drift * plan.period_s, is_last=is_last)
        if job.drift.has_drifted(limits_of(rules)):
            self.to_refit.add(job.id)

    def phase_failed(self, job: JobRecord) -> None:
        """The job will run the same phase again, so its period becomes longer."""
        job.drift.measured.give_up_period()


def limits_of(rules: ClusterRules) -> DriftLimits:
    return DriftLimits(share=rules.drift, num_periods=rules.drift_cycles, slot_s=rules.slot_s)


def _seconds_off(job: JobRecord, plan: DemandTrace, number: int, slot_s: float) -> float:
    """How far from its planned place the job asked for its present phase, the one of this number of its period."""
    asked_at = job.log.asked_at
    if job.seat is None or job.seat.reservation is None or asked_at is None:
        return 0.0
    placed = job.seat.reservation.placement
    period_s = placed.footprint.period * slot_s / placed.footprint.repeats
    # A job that is planned in step with others has their period: its pauses are longer or shorter.
    as_reserved = plan.with_period(period_s) or plan
    off_s = (asked_at - placed.start * slot_s - as_reserved.segments[number].offset_s) % period_s
    return min(off_s, period_s - off_s)
