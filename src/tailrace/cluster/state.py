"""The whole state of the cluster scheduler: who belongs where, what waiting jobs have claimed, and where it is worth
looking for a place again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tailrace.cluster.arbitration.fair_share import FairShare
from tailrace.cluster.arbitration.group_queue import GroupQueue
from tailrace.cluster.group_record import GroupRecord
from tailrace.cluster.ids import JobId, NodeGroupId, NodeId
from tailrace.cluster.job_record import JobRecord, Seat
from tailrace.cluster.jobs import Needs, Stage
from tailrace.cluster.openings import NEVER, Openings
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
    openings: Openings
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
    searched: dict[Needs, int] = field(default_factory=dict)
    """The newest opening that there was when no group without a claim had room for a job with these needs."""
    num_begun: int = 0
    """How often a job got an empty group. Others may join it there."""
    room_searched: tuple[object, ...] = ()
    """The newest opening, ``num_begun``, the free rollout devices and the claims when a lone job was last looked for
    that could make room."""
    order_changes_at: float = math.inf
    """When another order of admission begins, only because time passes."""
    calm_at: dict[NodeGroupId, float] = field(default_factory=dict)
    """Groups that a waiting job could join if their jobs had waited for a smaller share of their time: when that will
    be, infinite if it is not known."""
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
            openings=Openings(group.id for group in groups),
        )

    def live(self) -> Iterator[JobRecord]:
        return iter(self.running.values())

    def groups_for(self, job: JobRecord, now: float, *, with_claimed: bool = False) -> list[GroupRecord]:
        """The groups that would take the job, without those that others have claimed."""
        claimed = set() if with_claimed else {group for name, group in self.claims.items() if name != job.id}
        return [
            group for group in self.groups.values() if group.id not in claimed and group.takes(job, self.rules, now)
        ]

    def opened_for(self, job: JobRecord) -> list[GroupRecord]:
        """Groups without a claim, opened since a job with these needs last found no place. All, if none has looked."""
        claimed = set(self.claims.values())
        opened = self.openings.since(self.searched.get(job.needs, NEVER))
        return [self.groups[name] for name in opened if name not in claimed]

    def open(self, group: NodeGroupId) -> None:
        """The group may have room for another job from now on."""
        self.openings.note(group)
        self.calm_at.pop(group, None)
        self.is_changed = True

    def drop_claim(self, job: JobId) -> None:
        self.promises.pop(job, None)
        if (group := self.claims.pop(job, None)) is not None:
            self.openings.note(group)

    def await_calm(self, job: JobRecord, groups: Iterable[GroupRecord], now: float) -> None:
        """Note the groups that the job cannot join only because of the waits there: they open when these are
        smaller."""
        for group in groups:
            if group.id not in self.calm_at and job.id not in group.jobs and group.has_place_for(job, self.rules):
                at = group.calm_from(self.rules, now)
                if at > now:
                    self.calm_at[group.id] = at

    def pass_time(self, now: float) -> None:
        """Note what becomes possible only because time passes: groups are calm, and the order of admission changes."""
        for group in [group for group, at in self.calm_at.items() if at <= now]:
            self.open(group)
        self.is_changed |= self.order_changes_at <= now

    def forget_searches(self, *, is_anybody_waiting: bool) -> None:
        """Forget the searches of jobs that do not wait any more, and, if nobody waits, for which groups they waited.

        Times at which groups are calm belong to searches: without the times, the searches would never be repeated.
        """
        if not is_anybody_waiting:
            self.calm_at.clear()
            self.searched.clear()
        elif len(self.searched) > 2 * len(self.queue):
            waiting = {job.needs for job in self.queue.values()}
            self.searched = {needs: newest for needs, newest in self.searched.items() if needs in waiting}

    def seat(self, job: JobRecord, choice: Choice, now: float) -> None:
        """Give the job its place, and its slots in the timetable."""
        assert job.seat is None
        reservation = None
        if choice.footprint is not None:
            reservation = self.timetable.reserve(job.id, choice.group, choice.footprint, choice.start_slot)
        job.seat = Seat(group=choice.group, is_dedicated=choice.is_dedicated, reservation=reservation)
        group = self.groups[choice.group]
        self.num_begun += not group.jobs
        group.jobs[job.id] = job
        group.count()
        self.drop_claim(job.id)
        job.seated_at, job.late_s = now, 0.0

    def unseat(self, job: JobRecord) -> GroupRecord | None:
        """Take the job's place away. Returns the group that it left."""
        if job.seat is None:
            return None
        group = self.groups[job.seat.group]
        if job.seat.reservation is not None:
            self.timetable.release(job.seat.reservation)
        del group.jobs[job.id]
        group.count()
        job.seat = None
        self.open(group.id)
        return group

    def end(self, job: JobRecord, reason: str) -> None:
        """Everything that the job holds is free again."""
        if job.is_live:
            self.free_rollout_devices += job.spec.rollout_devices
        self.queue.pop(job.id, None)
        self.drop_claim(job.id)
        self.running.pop(job.id, None)
        self.is_changed = True
        job.stage, job.reason, job.phase, job.displaced = Stage.ENDED, reason, None, None
