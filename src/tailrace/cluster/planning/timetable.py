"""The plan of the whole cluster: which job uses which slots of which node group, for ever.

Promises, which ``check`` verifies: no two jobs of a group ever use the same slot, and what is counted of a group is
what its reservations say. A reservation is made for all segments and all periods or not at all, and releasing it
restores the state before it exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations

from tailrace.cluster.ids import JobId, NodeGroupId
from tailrace.cluster.planning.fitting import Footprint, PlacedFootprint, least_shift
from tailrace.cluster.settings import NodeGroup

_CHECKED_PERIODS = 10_000
"""``check`` looks at most at this many periods of two jobs."""


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

    reservations: dict[JobId, Reservation] = field(default_factory=dict)
    residents: list[PlacedFootprint] = field(default_factory=list)
    """Placements of its jobs, in the order of their reservations."""
    duty: float = 0.0
    """Duty of all its jobs together."""
    is_lost: bool = False

    def count(self) -> None:
        """Its reservations have changed."""
        self.residents = [reservation.placement for reservation in self.reservations.values()]
        self.duty = math.fsum(placed.footprint.duty for placed in self.residents)


class Timetable:
    def __init__(self, groups: Iterable[NodeGroup]) -> None:
        self._rows = {group.id: GroupPlan() for group in groups}
        self._group_of: dict[JobId, NodeGroupId] = {}
        self._num_made = 0

    def plan(self, group: NodeGroupId) -> GroupPlan:
        """The group's plan. To be read only."""
        return self._rows[group]

    def duty(self, group: NodeGroupId) -> float:
        """Duty of all jobs of the group together."""
        return self._rows[group].duty

    def num_jobs(self, group: NodeGroupId) -> int:
        return len(self._rows[group].reservations)

    def residents(self, group: NodeGroupId) -> list[PlacedFootprint]:
        """Placements of the group's jobs, in the order of their reservations. To be read only."""
        return self._rows[group].residents

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
        if least_shift(row.residents, footprint, start_slot, at_most=0) is None:
            raise ValueError(f"job {job} does not fit on {group} at slot {start_slot}")
        placement = PlacedFootprint(footprint, start_slot)
        reservation = Reservation(job=job, group=group, placement=placement, generation=self._num_made)
        self._num_made += 1
        self._group_of[job] = group
        row.reservations[job] = reservation
        row.count()
        return reservation

    def release(self, reservation: Reservation) -> None:
        """Give all slots of the reservation back, past and future ones."""
        job, row = reservation.job, self._rows[reservation.group]
        if row.reservations.get(job) != reservation:
            raise ValueError(f"reservation {reservation.generation} of job {job} is not in force")
        del row.reservations[job], self._group_of[job]
        row.count()

    def lose(self, group: NodeGroupId) -> None:
        """The group takes no reservations until it is restored. Those it has stay until they are released."""
        self._rows[group].is_lost = True

    def restore(self, group: NodeGroupId) -> None:
        self._rows[group].is_lost = False

    def check(self) -> None:
        assert self._group_of == {job: group for group, row in self._rows.items() for job in row.reservations}
        for group, row in self._rows.items():
            counted = (row.residents, row.duty)
            row.count()
            assert counted == (row.residents, row.duty), f"{group} is miscounted"
            for one, other in combinations(row.residents, 2):
                assert not _meet(one, other), f"{group}: two jobs have the same slot"


def _meet(one: PlacedFootprint, other: PlacedFootprint) -> bool:
    """Whether the two ever use the same slot, seen by going through their uses in turn until their pattern repeats."""
    period = min(one.footprint.period, other.footprint.period)
    until = min(math.lcm(one.footprint.period, other.footprint.period), _CHECKED_PERIODS * period) + 2 * period
    uses, later_uses = one.uses(0), other.uses(0)
    (first, end), (later_first, later_end) = next(uses), next(later_uses)
    while min(first, later_first) <= until:
        if first < later_end and later_first < end:
            return True
        if end <= later_end:
            first, end = next(uses)
        else:
            later_first, later_end = next(later_uses)
    return False
