"""Interference against its definition, slot by slot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.planning.worlds import ALL, footprints, slots_of
from tailrace.cluster.planning.fitting import Footprint, PlacedFootprint, SlotSegment
from tailrace.cluster.planning.interference import interference


def by_definition(placed: PlacedFootprint, residents: list[PlacedFootprint], guard: int) -> float:
    active, total = set(slots_of(placed)), 0.0
    for resident in residents:
        footprint, overlap = resident.footprint, 0
        for repetition in range(ALL // footprint.period):
            for segment in footprint.segments:
                first = resident.start + repetition * footprint.period + segment.offset - guard
                count = min(segment.count + 2 * guard, footprint.period)
                common = len({slot % ALL for slot in range(first, first + count)} & active)
                overlap += common if segment.slack < common else 0
        total += overlap / ALL
    return total


placements = st.builds(PlacedFootprint, footprints(), st.integers(-30, 400))


@given(placements, st.lists(placements, max_size=3), st.integers(0, 14))
def test_interference_is_the_mean_critical_overlap_per_period(
    placed: PlacedFootprint, residents: list[PlacedFootprint], guard: int
) -> None:
    assert interference(placed, residents, guard) == pytest.approx(by_definition(placed, residents, guard))


def at(start: int, *, slack: int = 0) -> PlacedFootprint:
    segments = (SlotSegment(offset=0, count=2, slack=slack),)
    return PlacedFootprint(Footprint(period=8, segments=segments, duty=0.25), start)


def test_only_a_neighbour_within_the_guard_interferes() -> None:
    assert interference(at(4), [at(0)], 2) == 0.0
    assert interference(at(3), [at(0)], 2) == 1 / 8
    assert interference(at(3), [at(0), at(6)], 2) == 2 / 8


def test_a_segment_with_enough_slack_is_not_critical() -> None:
    assert interference(at(2), [at(0)], 2) == 2 / 8
    assert interference(at(2), [at(0, slack=1)], 2) == 2 / 8
    assert interference(at(2), [at(0, slack=2)], 2) == 0.0


def test_without_residents_there_is_none() -> None:
    assert interference(at(0), [], 5) == 0.0
