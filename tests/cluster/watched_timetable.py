"""A timetable that also keeps its own account of who uses which slots."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from cluster.planning.worlds import slots_of
from cluster.random_cluster import World
from tailrace.cluster.ids import JobId, NodeGroupId
from tailrace.cluster.planning.fitting import Footprint, PlacedFootprint
from tailrace.cluster.planning.timetable import Reservation, Timetable


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A reservation, and the jobs of its group before it."""

    at: float
    reservation: Reservation
    beside: tuple[PlacedFootprint, ...]


class WatchedTimetable(Timetable):
    def __init__(self, world: World) -> None:
        super().__init__(world.history.started.groups)
        self._world = world
        self.taken: dict[NodeGroupId, dict[JobId, PlacedFootprint]] = {
            group.id: {} for group in world.history.started.groups
        }
        self.made: list[Made] = []

    def reserve(self, job: JobId, group: NodeGroupId, footprint: Footprint, start_slot: int) -> Reservation:
        reservation = super().reserve(job, group, footprint, start_slot)
        placement, taken = reservation.placement, self.taken[group]
        own = slots_of(placement, footprint.period)
        assert len(set(own)) == len(own), "two segments of the job have the same slot"
        assert not any(meet(placement, other) for other in taken.values()), "a segment lies in slots that were not free"
        self.made.append(Made(at=self._world.now, reservation=reservation, beside=tuple(taken.values())))
        taken[job] = placement
        self.compare(group)
        return reservation

    def release(self, reservation: Reservation) -> None:
        super().release(reservation)
        assert self.taken[reservation.group].pop(reservation.job) == reservation.placement
        self.compare(reservation.group)

    def compare(self, group: NodeGroupId) -> None:
        """The jobs of the group are those of the own account."""
        assert self.residents(group) == list(self.taken[group].values())


def watched(world: World) -> WatchedTimetable:
    """Give the world's scheduler a timetable that is watched. The history must not have begun."""
    timetable = WatchedTimetable(world)
    world.scheduler.rooms.groups.timetable = timetable
    return timetable


def meet(one: PlacedFootprint, other: PlacedFootprint) -> bool:
    """Whether they ever use the same slot, seen slot by slot until their pattern repeats."""
    num_slots = math.lcm(one.footprint.period, other.footprint.period)
    return not set(slots_of(one, num_slots)).isdisjoint(slots_of(other, num_slots))


def least_shift_by_trying(footprint: Footprint, start: int, beside: Iterable[PlacedFootprint]) -> int | None:
    """The least shift below a period at which no slot is used by another job, tried one by one."""
    taken = {}
    for other in beside:
        num_slots = math.lcm(footprint.period, other.footprint.period)
        taken.setdefault(num_slots, set()).update(slots_of(other, num_slots))
    for shift in range(footprint.period):
        placement = PlacedFootprint(footprint, start + shift)
        if all(busy.isdisjoint(slots_of(placement, num_slots)) for num_slots, busy in taken.items()):
            return shift
    return None
