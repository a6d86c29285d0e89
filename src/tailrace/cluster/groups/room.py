"""The groups room: node groups, the jobs that belong to them, their timetable, and which may have got room."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from tailrace.cluster.groups.openings import Openings
from tailrace.cluster.groups.placement import Choice
from tailrace.cluster.groups.record import GroupRecord
from tailrace.cluster.groups.seat import Seat
from tailrace.cluster.ids import NodeGroupId, NodeId
from tailrace.cluster.jobs.record import JobRecord
from tailrace.cluster.planning.timetable import Timetable
from tailrace.cluster.settings import ClusterRules


@dataclass(slots=True, kw_only=True)
class Groups:
    """State of the groups room."""

    records: dict[NodeGroupId, GroupRecord]
    timetable: Timetable
    group_of_node: dict[NodeId, NodeGroupId]
    openings: Openings
    opens_at: dict[NodeGroupId, float] = field(default_factory=dict)
    """Groups that a waiting job could join if their jobs had waited for a smaller share of their time: when that will
    be, infinite if it is not known."""
    num_begun: int = 0
    """How often a job got an empty group. Others may join it there."""

    # Questions

    def named(self, name: NodeGroupId) -> GroupRecord:
        return self.records[name]

    def find(self, name: NodeGroupId) -> GroupRecord | None:
        return self.records.get(name)

    def find_node(self, node: NodeId) -> GroupRecord | None:
        """The group that the node belongs to; None: there is no such node."""
        name = self.group_of_node.get(node)
        return None if name is None else self.records[name]

    def every(self) -> Collection[GroupRecord]:
        return self.records.values()

    def taking(
        self, job: JobRecord, rules: ClusterRules, now: float, *, without: Collection[NodeGroupId] = ()
    ) -> list[GroupRecord]:
        """The groups that would take the job."""
        return [group for group in self.records.values() if group.id not in without and group.takes(job, rules, now)]

    @property
    def newest_opening(self) -> int:
        return self.openings.newest

    def opened_since(self, number: int) -> list[GroupRecord]:
        return [self.records[name] for name in self.openings.since(number)]

    def is_opening_awaited(self, group: NodeGroupId) -> bool:
        """Whether a job waits until the group's jobs have waited for a smaller share of their time."""
        return group in self.opens_at

    def next_opening_at(self) -> float:
        """When the next group opens only because time passes; infinite: not known."""
        return min(self.opens_at.values(), default=math.inf)

    def open_by_now(self, now: float) -> list[NodeGroupId]:
        return [group for group, at in self.opens_at.items() if at <= now]

    # Notices: openings

    def open(self, group: NodeGroupId) -> None:
        """The group may have room for another job from now on."""
        self.openings.note(group)
        self.opens_at.pop(group, None)

    def give_up_claim(self, group: NodeGroupId) -> None:
        """The group has no claim any more: others may look at it."""
        self.openings.note(group)

    def await_opening(self, job: JobRecord, groups: Iterable[GroupRecord], rules: ClusterRules, now: float) -> None:
        """Note the groups that the job cannot join only because of the waits there: they open when these are
        smaller."""
        for group in groups:
            if group.id not in self.opens_at and job.id not in group.jobs and group.has_place_for(job, rules):
                at = group.joinable_from(rules, now)
                if at > now:
                    self.opens_at[group.id] = at

    def wait_ended(self, group: NodeGroupId, rules: ClusterRules, now: float) -> None:
        """A job of the group has its lease: its share of waiting grew until now, and falls from now on."""
        if group in self.opens_at:
            self.opens_at[group] = self.records[group].joinable_from(rules, now)

    def await_nothing(self) -> None:
        """Nobody waits for an opening."""
        self.opens_at.clear()

    # Notices: jobs and nodes

    def seat(self, job: JobRecord, choice: Choice, now: float) -> None:
        """Give the job its place, and its slots in the timetable. ``ValueError`` if they are not free."""
        reservation = None
        if choice.footprint is not None:
            reservation = self.timetable.reserve(job.id, choice.group, choice.footprint, choice.start_slot)
        seat = Seat(group=choice.group, is_dedicated=choice.is_dedicated, reservation=reservation)
        job.take_seat(seat, now)
        group = self.records[choice.group]
        self.num_begun += not group.jobs
        group.jobs[job.id] = job
        group.count()

    def unseat(self, job: JobRecord, seat: Seat) -> GroupRecord:
        """Take the job's place away. Returns the group that it left."""
        group = self.records[seat.group]
        if seat.reservation is not None:
            self.timetable.release(seat.reservation)
        del group.jobs[job.id]
        group.count()
        job.leave_seat()
        return group

    def recount(self, group: NodeGroupId) -> None:
        """Another demand of one of its jobs is known."""
        self.records[group].count()
