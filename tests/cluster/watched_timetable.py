"""A timetable that also keeps its own account, slot by slot, of who has reserved what."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.planning.worlds import slots_of
from cluster.random_cluster import World
from tailrace.cluster.ids import JobId, NodeGroupId
from tailrace.cluster.planning.fitting import Footprint, PlacedFootprint
from tailrace.cluster.planning.timetable import Reservation, Timetable


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A reservation, and the slots of its group that were busy before it."""

    at: float
    reservation: Reservation
    busy_before: frozenset[int]


class WatchedTimetable(Timetable):
    def __init__(self, world: World) -> None:
        super().__init__(world.history.started.groups, world.rules.horizon_slots)
        self._world = world
        self.taken: dict[NodeGroupId, dict[int, JobId]] = {group.id: {} for group in world.history.started.groups}
        self.made: list[Made] = []

    def reserve(self, job: JobId, group: NodeGroupId, footprint: Footprint, start_slot: int) -> Reservation:
        reservation = super().reserve(job, group, footprint, start_slot)
        slots, taken = slots_of(reservation.placement), self.taken[group]
        assert len(set(slots)) == len(slots), "two segments of the job have the same slot"
        assert not taken.keys() & set(slots), "a segment lies in slots that were not free"
        self.made.append(Made(at=self._world.now, reservation=reservation, busy_before=frozenset(taken)))
        taken |= dict.fromkeys(slots, job)
        self.compare(group)
        return reservation

    def release(self, reservation: Reservation) -> None:
        super().release(reservation)
        taken = self.taken[reservation.group]
        for slot in slots_of(reservation.placement):
            assert taken.pop(slot) == reservation.job
        self.compare(reservation.group)

    def compare(self, group: NodeGroupId) -> None:
        """Busy and free slots are those of the own account."""
        busy = {slot for start, end in self.busy(group).intervals for slot in range(start, end)}
        windows = [
            slot % self.num_slots
            for start, count in self.busy(group).free_windows()
            for slot in range(start, start + count)
        ]
        assert busy == self.taken[group].keys()
        assert sorted(windows) == [slot for slot in range(self.num_slots) if slot not in busy]


def watched(world: World) -> WatchedTimetable:
    """Give the world's scheduler a timetable that is watched. The history must not have begun."""
    timetable = WatchedTimetable(world)
    world.scheduler.rooms.groups.timetable = timetable
    return timetable


def least_shift_by_trying(footprint: Footprint, start: int, busy: frozenset[int] | set[int]) -> int | None:
    """The least shift below a period at which all slots are free, tried one by one."""
    for shift in range(footprint.period):
        placement = PlacedFootprint(footprint, (start + shift) % footprint.num_slots)
        if not busy & set(slots_of(placement)):
            return shift
    return None
