"""What the scheduler knows about one node group: which jobs belong to it, and whether it has room for another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tailrace.cluster.arbitration.group_queue import GroupQueue
from tailrace.cluster.ids import JobId, NodeGroupId, NodeId
from tailrace.cluster.job_record import JobRecord
from tailrace.cluster.jobs import StateBytes
from tailrace.cluster.rules import ClusterRules, NodeGroup


@dataclass(slots=True, kw_only=True)
class GroupRecord:
    facts: NodeGroup
    queue: GroupQueue
    jobs: dict[JobId, JobRecord] = field(default_factory=dict)
    lost: set[NodeId] = field(default_factory=set)
    calm_at: float | None = None
    """A job that waits for a place could join if the jobs of this group had waited for a smaller share of their time:
    when that will be, infinite if it is not known. None: no job waits for that."""

    @property
    def id(self) -> NodeGroupId:
        return self.facts.id

    @property
    def is_usable(self) -> bool:
        return not self.lost

    @property
    def is_dedicated(self) -> bool:
        return any(job.seat is not None and job.seat.is_dedicated for job in self.jobs.values())

    @property
    def is_planned(self) -> bool:
        """Whether all its jobs have their slots in the timetable."""
        return all(job.seat is not None and job.seat.reservation is not None for job in self.jobs.values())

    @property
    def duty(self) -> float:
        return sum(job.duty for job in self.jobs.values())

    def takes(self, job: JobRecord, rules: ClusterRules, now: float) -> bool:
        """Whether the job may join: by the number of jobs, their duty, their waits and the bytes of their state."""
        return self.has_place_for(job, rules) and self.calm_from(rules, now) <= now

    def calm_from(self, rules: ClusterRules, now: float) -> float:
        """When none of its jobs will have waited for more than ``max_wait_share`` of its time, if nothing happens;
        infinite: not known."""
        return max((job.calm_at(rules.max_wait_share, now) for job in self.jobs.values()), default=now)

    def is_calm_again(self, now: float) -> bool:
        """Whether the time has come for which a job waits (``calm_at``)."""
        return self.calm_at is not None and self.calm_at <= now

    def has_place_for(self, job: JobRecord, rules: ClusterRules) -> bool:
        """Whether the job may join, if the waits of the group's jobs do not count."""
        if not self.is_usable or self.facts.devices != job.spec.train_devices:
            return False
        if self.jobs and (job.trace is None or len(self.jobs) >= rules.max_jobs_per_group or self.is_dedicated):
            return False
        if not self.has_room_for(job.spec.state):
            return False
        return not self.jobs or self.duty + job.duty <= rules.max_duty + 1e-9

    def has_room_for(self, state: StateBytes) -> bool:
        """Whether the state of one job fits on the devices, and that of all jobs in host memory and on disk.

        All jobs count, because the job that computes leaves its place in host memory reserved: it must be offloaded
        again.
        """
        return fits(self.facts, state, [job.spec.state for job in self.jobs.values()])

    @property
    def stored_bytes(self) -> int:
        """Bytes of state that fit in host memory and on disk."""
        return (self.facts.host_bytes or 0) + (self.facts.disk_bytes or 0)


def fits(group: NodeGroup, state: StateBytes, others: Sequence[StateBytes] = ()) -> bool:
    """Whether a job's state fits beside that of others. A job that is alone is never offloaded."""
    if group.device_bytes is not None and state.total > group.device_bytes:
        return False
    if group.host_bytes is None or not others:
        return True
    needed = state.total + sum(other.total for other in others)
    return needed <= group.host_bytes + (group.disk_bytes or 0)
