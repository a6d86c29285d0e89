"""Small plans for tests: footprints and plans drawn at random, and the definitions worked out slot by slot."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st

from tailrace.cluster.ids import JobId, NodeGroupId, NodeId
from tailrace.cluster.planning.fitting import Footprint, PlacedFootprint, SlotSegment
from tailrace.cluster.planning.timetable import Timetable
from tailrace.cluster.settings import NodeGroup

PERIODS = (1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 15, 18, 20, 24)
ALL = 360
"""Slots after which jobs of these periods are where they were, so what holds for them holds for ever."""


@st.composite
def footprints(draw: st.DrawFn) -> Footprint:
    period = draw(st.sampled_from(PERIODS))
    bounds = sorted(draw(st.sets(st.integers(0, period), min_size=2, max_size=6)))
    later = draw(st.integers(0, 3))  # so the last segment may end in the next period
    segments = tuple(
        SlotSegment(offset=later + low, count=high - low, slack=draw(st.integers(0, 3)))
        for low, high in zip(bounds[::2], bounds[1::2], strict=False)
    )
    duty = sum(segment.count for segment in segments) / period
    return Footprint(period=period, segments=segments, duty=duty)


def slots_of(placement: PlacedFootprint, num_slots: int = ALL) -> list[int]:
    """Straight from the definition, for a number of slots after which the footprint repeats."""
    footprint = placement.footprint
    assert num_slots % footprint.period == 0
    return [
        (placement.start + segment.offset + repetition * footprint.period + index) % num_slots
        for repetition in range(num_slots // footprint.period)
        for segment in footprint.segments
        for index in range(segment.count)
    ]


def group(name: str, num_nodes: int = 1) -> NodeGroup:
    nodes = tuple(NodeId(f"{name}-{index}") for index in range(num_nodes))
    return NodeGroup(id=NodeGroupId(name), nodes=nodes, devices=8)


@st.composite
def timetables(draw: st.DrawFn, num_groups: int) -> Timetable:
    """A timetable with some jobs, placed wherever they fit, and perhaps a lost group."""
    groups = [group(f"g{index}") for index in range(num_groups)]
    timetable = Timetable(groups)
    for number in range(draw(st.integers(0, 2 * num_groups))):
        where, start = draw(st.sampled_from(groups)).id, draw(st.integers(0, 23))
        footprint = draw(footprints())
        if is_feasible(timetable, where, PlacedFootprint(footprint, start)):
            timetable.reserve(JobId(f"job-{number}"), where, footprint, start)
    if draw(st.booleans()):
        timetable.lose(draw(st.sampled_from(groups)).id)
    return timetable


def busy_slots(timetable: Timetable, where: NodeGroupId) -> set[int]:
    return all_slots(timetable.residents(where))


def all_slots(placements: Iterable[PlacedFootprint]) -> set[int]:
    return {slot for placement in placements for slot in slots_of(placement)}


def is_feasible(timetable: Timetable, where: NodeGroupId, placement: PlacedFootprint) -> bool:
    return not busy_slots(timetable, where) & set(slots_of(placement))
