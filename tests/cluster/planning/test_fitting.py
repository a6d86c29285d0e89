"""The least shift against trying every shift, and footprints of traces."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.planning.worlds import ALL, all_slots, footprints, slots_of
from tailrace.cluster.demand.trace import DemandSegment, DemandTrace
from tailrace.cluster.planning.fitting import Footprint, PlacedFootprint, SlotSegment, least_shift

STARTS = st.integers(-30, 400)
residents_of_any_kind = st.lists(st.builds(PlacedFootprint, footprints(), STARTS), max_size=3)


def feasible_shifts(residents: list[PlacedFootprint], footprint: Footprint, start: int) -> list[int]:
    taken = all_slots(residents)
    return [
        shift
        for shift in range(footprint.period)
        if not taken & set(slots_of(PlacedFootprint(footprint, start + shift)))
    ]


@given(residents_of_any_kind, footprints(), STARTS, st.integers(0, 8), st.data())
def test_the_shift_is_the_least_feasible_one(
    residents: list[PlacedFootprint], footprint: Footprint, start: int, at_least: int, data: st.DataObject
) -> None:
    at_most = data.draw(st.none() | st.integers(0, 30))
    allowed = [
        shift
        for shift in feasible_shifts(residents, footprint, start)
        if at_least <= shift and (at_most is None or shift <= at_most)
    ]
    found = least_shift(residents, footprint, start, at_least=at_least, at_most=at_most)
    assert found == (allowed[0] if allowed else None)


@given(footprints(), STARTS, STARTS)
def test_uses_are_the_slots_of_the_job_in_order(footprint: Footprint, start: int, first: int) -> None:
    placed = PlacedFootprint(footprint, start)
    uses = list(islice(placed.uses(first), 3 * len(footprint.segments)))
    assert uses[0][0] - footprint.segments[0].offset <= first
    assert all(end <= next_first for (_, end), (next_first, _) in pairwise(uses))
    busy = set(slots_of(placed))
    assert all(slot % ALL in busy for low, high in uses for slot in range(low, high))
    assert sum(high - low for low, high in uses) == 3 * footprint.busy_per_period


def test_periods_without_a_common_divisor_meet_whatever_the_shift() -> None:
    """290 and 285 s: after 58 periods of the second one every distance has come up."""
    one, other = plain(290, 59), plain(285, 59)
    assert least_shift([PlacedFootprint(one, 0)], other, 0) is None
    assert least_shift([PlacedFootprint(one, 0)], plain(580, 59), 0) == 59
    assert least_shift([PlacedFootprint(plain(290, 100), 0)], plain(435, 45), 0) == 100, "they share 145"
    assert least_shift([PlacedFootprint(plain(290, 100), 0)], plain(435, 46), 0) is None


def plain(period: int, count: int) -> Footprint:
    return Footprint(period=period, segments=(SlotSegment(offset=0, count=count),), duty=count / period)


def trace(period_s: float, *segments: tuple[float, float, float]) -> DemandTrace:
    parts = tuple(
        DemandSegment(offset_s=offset, duration_s=seconds, slack_s=slack) for offset, seconds, slack in segments
    )
    return DemandTrace(period_s=period_s, segments=parts)


def test_a_footprint_covers_its_trace() -> None:
    demand = trace(100.6, (0.0, 2.5, 0.0), (9.9, 10.0, 7.9), (50.0, 50.5, 3.0))
    footprint = Footprint.of(demand, 1.0)
    assert footprint == Footprint(
        period=101,
        segments=(
            SlotSegment(offset=0, count=3),
            SlotSegment(offset=9, count=11, slack=7),
            SlotSegment(offset=50, count=51, slack=3),
        ),
        duty=demand.duty,
    )
    assert footprint.busy_per_period == 65


def test_a_period_is_the_nearest_number_of_slots_if_the_segments_have_room() -> None:
    """An error of almost a slot in each period would be 60 slots after 60 periods. The pause makes up for the rest."""
    footprint = Footprint.of(trace(289.03, (231.53, 57.5, 0.0)), 1.0)
    assert (footprint.period, footprint.segments) == (289, (SlotSegment(offset=231, count=58),))
    longer = Footprint.of(trace(294.41, (215.03, 79.38, 0.0)), 1.0)
    assert (longer.period, longer.segments) == (294, (SlotSegment(offset=214, count=80),))
    full = Footprint.of(trace(10.4, (0.0, 10.4, 0.0)), 1.0)
    assert (full.period, full.segments) == (11, (SlotSegment(offset=0, count=11),))


def test_a_slot_belongs_to_one_segment_only() -> None:
    footprint = Footprint.of(trace(10.0, (0.0, 1.5, 0.0), (1.5, 1.0, 2.0), (2.6, 0.2, 0.0), (2.9, 0.3, 0.0)), 1.0)
    assert [(segment.offset, segment.count) for segment in footprint.segments] == [(0, 2), (2, 1), (3, 1)]


def test_the_shortest_segment_has_a_slot() -> None:
    footprint = Footprint.of(trace(10.0, (3.0, 1e-12, 0.0)), 1.0)
    assert footprint.segments == (SlotSegment(offset=3, count=1),)


@pytest.mark.parametrize("slot_s", [0.1, 0.3, 0.7])
def test_a_whole_number_of_slots_is_not_rounded_up(slot_s: float) -> None:
    footprint = Footprint.of(trace(30 * slot_s, (3 * slot_s, 6 * slot_s, 9 * slot_s)), slot_s)
    assert footprint.period == 30
    assert footprint.segments == (SlotSegment(offset=3, count=6, slack=9),)
