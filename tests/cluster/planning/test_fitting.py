"""The least shift against trying every shift."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.planning.worlds import all_slots, footprints, slots_of, timetables
from tailrace.cluster.demand.trace import DemandSegment, DemandTrace
from tailrace.cluster.ids import NodeGroupId
from tailrace.cluster.planning.capacity import CapacityProfile
from tailrace.cluster.planning.fitting import (
    Footprint,
    PlacedFootprint,
    SlotSegment,
    least_shift,
    least_shift_by_capacity,
)
from tailrace.cluster.planning.intervals import IntervalSet

NUM_SLOTS = 30


@st.composite
def busy_sets(draw: st.DrawFn) -> IntervalSet:
    busy = IntervalSet(NUM_SLOTS)
    for slot in sorted(draw(st.sets(st.integers(0, NUM_SLOTS - 1), max_size=14))):
        busy.add(slot, 1)
    return busy


def feasible_shifts(busy: IntervalSet, footprint: Footprint, start: int) -> list[int]:
    taken = {slot for low, high in busy.intervals for slot in range(low, high)}
    return [
        shift
        for shift in range(footprint.period)
        if not taken & set(slots_of(PlacedFootprint(footprint, (start + shift) % NUM_SLOTS)))
    ]


@given(busy_sets(), footprints(NUM_SLOTS), st.integers(0, NUM_SLOTS - 1), st.integers(0, 8), st.data())
def test_the_shift_is_the_least_feasible_one(
    busy: IntervalSet, footprint: Footprint, start: int, at_least: int, data: st.DataObject
) -> None:
    at_most = data.draw(st.none() | st.integers(0, NUM_SLOTS))
    allowed = [
        shift
        for shift in feasible_shifts(busy, footprint, start)
        if at_least <= shift and (at_most is None or shift <= at_most)
    ]
    found = least_shift(busy, footprint, start, at_least=at_least, at_most=at_most)
    assert found == (allowed[0] if allowed else None)


@given(timetables(NUM_SLOTS, 3), footprints(NUM_SLOTS), st.integers(0, NUM_SLOTS - 1))
def test_the_bound_by_capacity_rejects_no_feasible_shift_of_any_group(timetable, footprint, start) -> None:
    groups = [NodeGroupId(f"g{index}") for index in range(3)]
    for least_nodes in (1, 2, 3):
        bound = least_shift_by_capacity(timetable.profile, footprint, start, least_nodes)
        for group in groups:
            if timetable.num_nodes(group) >= least_nodes and not timetable.is_lost(group):
                feasible = feasible_shifts(timetable.busy(group), footprint, start)
                assert not feasible or (bound is not None and bound <= feasible[0])


@given(st.lists(st.integers(0, 3), min_size=NUM_SLOTS, max_size=NUM_SLOTS), footprints(NUM_SLOTS), st.integers(0, 29))
def test_the_bound_by_capacity_is_the_least_shift_at_which_enough_nodes_are_free(
    free: list[int], footprint: Footprint, start: int
) -> None:
    profile = CapacityProfile(NUM_SLOTS, 0)
    for slot, amount in enumerate(free):
        profile.add(slot, 1, amount)
    allowed = [
        shift
        for shift in range(footprint.period)
        if all(free[slot] >= 2 for slot in slots_of(PlacedFootprint(footprint, (start + shift) % NUM_SLOTS)))
    ]
    assert least_shift_by_capacity(profile, footprint, start, 2) == (allowed[0] if allowed else None)


@given(footprints(NUM_SLOTS), st.integers(0, NUM_SLOTS - 1))
def test_ranges_are_the_slots_of_all_repetitions_and_disjoint(footprint: Footprint, start: int) -> None:
    ranges = list(PlacedFootprint(footprint, start).ranges())
    slots = sorted(slot % NUM_SLOTS for first, count in ranges for slot in range(first, first + count))
    assert slots == sorted(all_slots([PlacedFootprint(footprint, start)]))
    assert len(slots) == footprint.num_repetitions * footprint.busy_per_period


def trace(period_s: float, *segments: tuple[float, float, float]) -> DemandTrace:
    parts = tuple(
        DemandSegment(offset_s=offset, duration_s=seconds, slack_s=slack) for offset, seconds, slack in segments
    )
    return DemandTrace(period_s=period_s, segments=parts)


def test_a_footprint_covers_its_trace() -> None:
    demand = trace(100.5, (0.0, 2.5, 0.0), (9.9, 10.0, 7.9), (50.0, 50.5, 3.0))
    footprint = Footprint.of(demand, 1.0, 28_800)
    assert footprint == Footprint(
        num_slots=28_800,
        period=101,
        segments=(
            SlotSegment(offset=0, count=3),
            SlotSegment(offset=9, count=11, slack=7),
            SlotSegment(offset=50, count=51, slack=3),
        ),
        duty=demand.duty,
    )
    assert footprint.num_repetitions == 285
    assert footprint.busy_per_period == 65


def test_a_slot_belongs_to_one_segment_only() -> None:
    footprint = Footprint.of(trace(10.0, (0.0, 1.5, 0.0), (1.5, 1.0, 2.0), (2.6, 0.2, 0.0), (2.9, 0.3, 0.0)), 1.0, 10)
    assert footprint is not None
    assert [(segment.offset, segment.count) for segment in footprint.segments] == [(0, 2), (2, 1), (3, 1)]


@pytest.mark.parametrize("slot_s", [0.1, 0.3, 0.7])
def test_a_whole_number_of_slots_is_not_rounded_up(slot_s: float) -> None:
    footprint = Footprint.of(trace(30 * slot_s, (3 * slot_s, 6 * slot_s, 9 * slot_s)), slot_s, 30)
    assert footprint is not None
    assert footprint.period == 30
    assert footprint.segments == (SlotSegment(offset=3, count=6, slack=9),)


def test_a_period_longer_than_the_ring_has_no_footprint() -> None:
    assert Footprint.of(trace(10.1, (0.0, 1.0, 0.0)), 1.0, 10) is None
    assert Footprint.of(trace(10.0, (0.0, 1.0, 0.0)), 1.0, 10) is not None
