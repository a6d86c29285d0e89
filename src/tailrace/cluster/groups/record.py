"""What the scheduler knows about one node group: which jobs belong to it, and whether it has room for another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tailrace.cluster.ids import JobId, NodeGroupId, NodeId
from tailrace.cluster.job_spec import ALL_PARTS, JobSpec, Parts, StateBytes
from tailrace.cluster.jobs.record import JobRecord
from tailrace.cluster.settings import ClusterRules, NodeGroup


@dataclass(slots=True, kw_only=True)
class GroupRecord:
    facts: NodeGroup
    jobs: dict[JobId, JobRecord] = field(default_factory=dict)
    lost: set[NodeId] = field(default_factory=set)
    # What follows from its jobs, counted when they change: every search for a place asks every group.
    is_dedicated: bool = False
    is_planned: bool = True
    """Whether all its jobs have their slots in the timetable."""
    duty: float = 0.0
    """Duty of all its jobs together."""

    @property
    def id(self) -> NodeGroupId:
        return self.facts.id

    @property
    def is_usable(self) -> bool:
        return not self.lost

    def count(self) -> None:
        """Its jobs have changed, or what is known about one of them."""
        seats = [job.seat for job in self.jobs.values()]
        self.is_dedicated = any(seat is not None and seat.is_dedicated for seat in seats)
        self.is_planned = all(seat is not None and seat.reservation is not None for seat in seats)
        self.duty = sum(job.duty for job in self.jobs.values())

    def takes(self, job: JobRecord, rules: ClusterRules, now: float) -> bool:
        """Whether the job may join: by the number of jobs, their duty, their waits and the bytes of their state."""
        return self.has_place_for(job, rules) and self.joinable_from(rules, now) <= now

    def joinable_from(self, rules: ClusterRules, now: float) -> float:
        """When none of its jobs will have waited for more than ``max_wait_share`` of its time, if nothing happens;
        infinite: not known."""
        at = now
        for job in self.jobs.values():
            if job.log.late_s or job.log.phase is not None:  # otherwise it has never waited here
                at = max(at, job.wait_share_falls_at(rules.max_wait_share, now))
        return at

    def has_place_for(self, job: JobRecord, rules: ClusterRules) -> bool:
        """Whether the job may join, if the waits of the group's jobs do not count."""
        if not self.is_usable or self.facts.devices != job.spec.train_devices:
            return False
        if self.jobs:
            if job.trace is None or len(self.jobs) >= rules.max_jobs_per_group:
                return False
            if self.duty + job.duty > rules.max_duty + 1e-9 or self.is_dedicated:
                return False
        return self.has_room_for(job.spec)

    def has_room_for(self, job: JobSpec) -> bool:
        """Whether the state of one job fits on the devices, and that of all jobs in host memory and on disk.

        All jobs count, because the job that computes leaves its place in host memory reserved: it must be offloaded
        again.
        """
        if self.facts.device_bytes is None and self.facts.host_bytes is None:
            return True  # bytes are not checked
        others = [each.spec.state for each in self.jobs.values()]
        return fits(self.facts, job.state, others, parts=job.device_parts)

    def can_hold(self, job: JobSpec) -> bool:
        """Whether the state of the job fits if nobody else is here."""
        return fits(self.facts, job.state, parts=job.device_parts)

    @property
    def stored_bytes(self) -> int:
        """Bytes of state that fit in host memory and on disk."""
        return (self.facts.host_bytes or 0) + (self.facts.disk_bytes or 0)


def fits(group: NodeGroup, state: StateBytes, others: Sequence[StateBytes] = (), *, parts: Parts = ALL_PARTS) -> bool:
    """Whether a job's state fits beside that of others. What comes to the devices of a job that is alone is never
    offloaded. ``parts``: those that come to the devices."""
    if group.device_bytes is not None and state.of(parts) > group.device_bytes:
        return False
    if group.host_bytes is None:
        return True
    needed = state.total + sum(other.total for other in others) if others else state.total - state.of(parts)
    return needed <= group.host_bytes + (group.disk_bytes or 0)
