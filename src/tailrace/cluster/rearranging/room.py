"""The rearranging room: which jobs are planned again, and which could make room for one that waits."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.cluster.ids import JobId
from tailrace.cluster.jobs.record import JobRecord
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
        """Compare the phase of the job that is complete now with its trace."""
        if (segment := job.segment) is None or job.trace is None:
            return
        seconds, late_s = job.log.seconds_in_phase, job.log.late_in_phase_s
        excess_s = max(_seconds_off(job, rules.slot_s), late_s + max(0.0, seconds - segment.duration_s))
        job.drift.note_phase(seconds / segment.duration_s, is_off=excess_s > rules.drift * job.trace.period_s)
        if job.drift.num_drifted >= rules.drift_cycles:
            self.to_refit.add(job.id)


def _seconds_off(job: JobRecord, slot_s: float) -> float:
    """How far from its planned place the job asked for its present phase."""
    asked_at = job.log.asked_at
    if job.seat is None or job.seat.reservation is None or job.segment is None or asked_at is None:
        return 0.0
    placed = job.seat.reservation.placement
    period_s = placed.footprint.period * slot_s / placed.footprint.repeats
    off_s = (asked_at - placed.start * slot_s - job.segment.offset_s) % period_s
    return min(off_s, period_s - off_s)
