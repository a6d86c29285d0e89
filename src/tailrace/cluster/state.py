"""The whole state of the cluster scheduler, and the two moves that change who belongs where: seat and unseat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tailrace.cluster.arbitration.fair_share import FairShare
from tailrace.cluster.arbitration.group_queue import GroupQueue
from tailrace.cluster.group_record import GroupRecord
from tailrace.cluster.ids import JobId, NodeGroupId, NodeId
from tailrace.cluster.job_record import JobRecord, Seat
from tailrace.cluster.jobs import Stage
from tailrace.cluster.placement import Choice
from tailrace.cluster.planning.timetable import Timetable
from tailrace.cluster.rules import ClusterRules, NodeGroup


@dataclass(slots=True, kw_only=True)
class ClusterState:
    rules: ClusterRules
    groups: dict[NodeGroupId, GroupRecord]
    timetable: Timetable
    free_rollout_devices: int
    num_rollout_devices: int
    group_of_node: dict[NodeId, NodeGroupId]
    shares: FairShare
    """Which tenant's job is admitted next (``admission_order.py``)."""
    jobs: dict[JobId, JobRecord] = field(default_factory=dict)
    running: dict[JobId, JobRecord] = field(default_factory=dict)
    """Admitted jobs that have not ended."""
    queue: dict[JobId, JobRecord] = field(default_factory=dict)
    """Jobs that wait for admission, in order of submission."""
    claims: dict[JobId, NodeGroupId] = field(default_factory=dict)
    """The group that a waiting job has claimed (``admission.py``)."""
    promises: dict[JobId, float] = field(default_factory=dict)
    """When a job with a claim was expected to start, the earliest time that was ever forecast for it."""
    is_changed: bool = True
    """Whether a job might get a place that it could not have when this was last looked at."""
    in_the_way: set[JobId] = field(default_factory=set)
    """Jobs that are alone on a group which another one waits for, and compute (``making_room.py``)."""
    to_refit: set[JobId] = field(default_factory=set)
    """Jobs whose place is to be planned again between two phases."""
    num_submitted: int = 0
    num_leases: int = 0
    num_ignored: int = 0
    """Reports that could not be true: of unknown or ended jobs, repeated, or about phases that nobody asked for."""

    @classmethod
    def start(cls, rules: ClusterRules, groups: Sequence[NodeGroup], rollout_devices: int) -> ClusterState:
        names = [node for group in groups for node in group.nodes]
        if len({group.id for group in groups}) != len(groups) or len(set(names)) != len(names):
            raise ValueError("node groups and nodes need names of their own")
        return cls(
            rules=rules,
            groups={group.id: GroupRecord(facts=group, queue=GroupQueue(group.id, rules)) for group in groups},
            timetable=Timetable(groups, rules.horizon_slots),
            free_rollout_devices=rollout_devices,
            num_rollout_devices=rollout_devices,
            group_of_node={node: group.id for group in groups for node in group.nodes},
            shares=FairShare(dict(rules.tenants)),
        )

    def live(self) -> Iterator[JobRecord]:
        return iter(self.running.values())

    def groups_for(self, job: JobRecord, now: float, *, with_claimed: bool = False) -> list[GroupRecord]:
        """The groups that would take the job, without those that others have claimed."""
        claimed = set() if with_claimed else {group for name, group in self.claims.items() if name != job.id}
        return [
            group for group in self.groups.values() if group.id not in claimed and group.takes(job, self.rules, now)
        ]

    def await_calm(self, job: JobRecord, now: float) -> None:
        """Note the groups that the job cannot join only because of the waits there: places are looked for again when
        they are smaller (``GroupRecord.calm_at``)."""
        for group in self.groups.values():
            if group.calm_at is None and job.id not in group.jobs and group.has_place_for(job, self.rules):
                at = group.calm_from(self.rules, now)
                group.calm_at = at if at > now else None

    def seat(self, job: JobRecord, choice: Choice, now: float) -> None:
        """Give the job its place, and its slots in the timetable."""
        assert job.seat is None
        reservation = None
        if choice.footprint is not None:
            reservation = self.timetable.reserve(job.id, choice.group, choice.footprint, choice.start_slot)
        job.seat = Seat(group=choice.group, is_dedicated=choice.is_dedicated, reservation=reservation)
        self.groups[choice.group].jobs[job.id] = job
        self.claims.pop(job.id, None)
        job.seated_at, job.late_s = now, 0.0

    def unseat(self, job: JobRecord) -> GroupRecord | None:
        """Take the job's place away. Returns the group that it left."""
        if job.seat is None:
            return None
        group = self.groups[job.seat.group]
        if job.seat.reservation is not None:
            self.timetable.release(job.seat.reservation)
        del group.jobs[job.id]
        job.seat = None
        self.is_changed = True
        return group

    def end(self, job: JobRecord, reason: str) -> None:
        """Everything that the job holds is free again."""
        if job.is_live:
            self.free_rollout_devices += job.spec.rollout_devices
        self.queue.pop(job.id, None)
        self.claims.pop(job.id, None)
        self.running.pop(job.id, None)
        self.is_changed = True
        job.stage, job.reason, job.phase, job.displaced = Stage.ENDED, reason, None, None
