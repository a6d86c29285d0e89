"""The plan of the whole cluster: which job takes which slots of which node group.

Promises, which ``check`` verifies: the slots of two jobs of a group are disjoint; busy and free slots of a group make
up the ring; the capacity profile is the number of nodes of all available groups that are free in a slot. A reservation
is made for all repetitions of all segments or not at all, and releasing it restores the state before it exactly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

from tailrace.cluster.ids import JobId, NodeGroupId
from tailrace.cluster.planning.capacity import CapacityProfile
from tailrace.cluster.planning.fitting import Footprint, PlacedFootprint
from tailrace.cluster.planning.intervals import IntervalSet
from tailrace.cluster.settings import NodeGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    job: JobId
    group: NodeGroupId
    placement: PlacedFootprint
    generation: int
    """Number of reservations made before it, so that an earlier one of the same job is told apart."""


@dataclass(slots=True, kw_only=True)
class GroupPlan:
    """One node group. Only the timetable changes it."""

    num_nodes: int
    busy: IntervalSet
    reservations: dict[JobId, Reservation] = field(default_factory=dict)
    duty: float = 0.0
    """Duty of all its jobs together."""
    is_lost: bool = False


class Timetable:
    def __init__(self, groups: Iterable[NodeGroup], num_slots: int) -> None:
        self.num_slots = num_slots
        self._rows = {group.id: GroupPlan(num_nodes=len(group.nodes), busy=IntervalSet(num_slots)) for group in groups}
        self.profile = CapacityProfile(num_slots, sum(row.num_nodes for row in self._rows.values()))
        self._group_of: dict[JobId, NodeGroupId] = {}
        self._num_made = 0

    def plan(self, group: NodeGroupId) -> GroupPlan:
        return self._rows[group]

    def busy(self, group: NodeGroupId) -> IntervalSet:
        """The group's busy slots. To be read only."""
        return self._rows[group].busy

    def num_nodes(self, group: NodeGroupId) -> int:
        return self._rows[group].num_nodes

    def duty(self, group: NodeGroupId) -> float:
        """Duty of all jobs of the group together."""
        return self._rows[group].duty

    def num_jobs(self, group: NodeGroupId) -> int:
        return len(self._rows[group].reservations)

    def residents(self, group: NodeGroupId) -> list[PlacedFootprint]:
        """Placements of the group's jobs, in the order of their reservations."""
        return [reservation.placement for reservation in self._rows[group].reservations.values()]

    def is_lost(self, group: NodeGroupId) -> bool:
        return self._rows[group].is_lost

    def reservation_of(self, job: JobId) -> Reservation | None:
        group = self._group_of.get(job)
        return None if group is None else self._rows[group].reservations[job]

    def reserve(self, job: JobId, group: NodeGroupId, footprint: Footprint, start_slot: int) -> Reservation:
        """Take the slots of a job that starts at ``start_slot``. ValueError, and nothing changes: some are not free."""
        row = self._rows[group]
        if job in self._group_of:
            raise ValueError(f"job {job} has a reservation on {self._group_of[job]} already")
        if row.is_lost:
            raise ValueError(f"node group {group} is lost")
        if footprint.num_slots != self.num_slots:
            raise ValueError(f"the footprint is for {footprint.num_slots} slots, the timetable has {self.num_slots}")
        placement = PlacedFootprint(footprint, start_slot % self.num_slots)
        if not _take(row.busy, placement):
            raise ValueError(f"job {job} does not fit on {group} at slot {start_slot}")
        for part in placement.ranges():
            self.profile.add(*part, -row.num_nodes)
        reservation = Reservation(job=job, group=group, placement=placement, generation=self._num_made)
        self._num_made += 1
        self._group_of[job] = group
        row.reservations[job] = reservation
        row.duty = _duty(row)
        return reservation

    def release(self, reservation: Reservation) -> None:
        """Give all slots of the reservation back, past and future ones."""
        job, row = reservation.job, self._rows[reservation.group]
        if row.reservations.get(job) != reservation:
            raise ValueError(f"reservation {reservation.generation} of job {job} is not in force")
        for part in reservation.placement.ranges():
            row.busy.remove(*part)
            if not row.is_lost:
                self.profile.add(*part, row.num_nodes)
        del row.reservations[job], self._group_of[job]
        row.duty = _duty(row)

    def lose(self, group: NodeGroupId) -> None:
        """The group takes no reservations until it is restored. Those it has stay until they are released."""
        row = self._rows[group]
        if not row.is_lost:
            row.is_lost = True
            self._count_free(row, -row.num_nodes)

    def restore(self, group: NodeGroupId) -> None:
        row = self._rows[group]
        if row.is_lost:
            row.is_lost = False
            self._count_free(row, row.num_nodes)

    def _count_free(self, row: GroupPlan, amount: int) -> None:
        for window in row.busy.free_windows():
            self.profile.add(*window, amount)

    def check(self) -> None:
        changes = [0] * (2 * self.num_slots + 1)  # from one slot to the next, once around the ring and over its seam
        for group, row in self._rows.items():
            self._check_plan(group, row)
            if not row.is_lost:
                for start, count in row.busy.free_windows():
                    changes[start] += row.num_nodes
                    changes[start + count] -= row.num_nodes
        free = list(accumulate(changes))
        free = [one + other for one, other in zip(free[: self.num_slots], free[self.num_slots : -1], strict=True)]
        assert self.profile.values() == free, "the capacity profile differs from a recount"
        assert self._group_of == {job: group for group, row in self._rows.items() for job in row.reservations}

    def _check_plan(self, group: NodeGroupId, row: GroupPlan) -> None:
        row.busy.check()
        uses = Counter(
            slot % self.num_slots
            for reservation in row.reservations.values()
            for start, count in reservation.placement.ranges()
            for slot in range(start, start + count)
        )
        assert all(times == 1 for times in uses.values()), f"{group}: two jobs have the same slot"
        busy = [slot for start, end in row.busy.intervals for slot in range(start, end)]
        assert sorted(uses) == busy, f"{group}: busy slots differ from the reservations"
        num_free = sum(count for _, count in row.busy.free_windows())
        assert num_free + len(busy) == self.num_slots, f"{group}: free and reserved slots do not make up the ring"
        assert row.duty == _duty(row), f"{group}: duty differs from a recount"


def _take(busy: IntervalSet, placement: PlacedFootprint) -> bool:
    """Make all slots of the placement busy, or none. Return whether they were free."""
    taken: list[tuple[int, int]] = []
    for part in placement.ranges():
        try:
            busy.add(*part)
        except ValueError:
            for earlier in taken:
                busy.remove(*earlier)
            return False
        taken.append(part)
    return True


def _duty(row: GroupPlan) -> float:
    return math.fsum(reservation.placement.footprint.duty for reservation in row.reservations.values())
