"""Small rings for tests: footprints and plans drawn at random, and the definitions worked out slot by slot."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st

from tailrace.cluster.ids import JobId, NodeGroupId, NodeId
from tailrace.cluster.planning.fitting import Footprint, PlacedFootprint, SlotSegment
from tailrace.cluster.planning.timetable import Timetable
from tailrace.cluster.settings import NodeGroup


@st.composite
def footprints(draw: st.DrawFn, num_slots: int) -> Footprint:
    period = draw(st.integers(1, num_slots))
    bounds = sorted(draw(st.sets(st.integers(0, period), min_size=2, max_size=6)))
    segments = tuple(
        SlotSegment(offset=low, count=high - low, slack=draw(st.integers(0, 3)))
        for low, high in zip(bounds[::2], bounds[1::2], strict=False)
    )
    duty = sum(segment.count for segment in segments) / period
    return Footprint(num_slots=num_slots, period=period, segments=segments, duty=duty)


def slots_of(placement: PlacedFootprint) -> list[int]:
    """Straight from the definition: (t0 + o_k + m * T + i) mod H."""
    footprint = placement.footprint
    return [
        (placement.start + segment.offset + repetition * footprint.period + index) % footprint.num_slots
        for repetition in range(footprint.num_slots // footprint.period)
        for segment in footprint.segments
        for index in range(segment.count)
    ]


def group(name: str, num_nodes: int = 1) -> NodeGroup:
    nodes = tuple(NodeId(f"{name}-{index}") for index in range(num_nodes))
    return NodeGroup(id=NodeGroupId(name), nodes=nodes, devices=8)


@st.composite
def timetables(draw: st.DrawFn, num_slots: int, num_groups: int) -> Timetable:
    """A timetable with some jobs, placed wherever they fit, and perhaps a lost group."""
    groups = [group(f"g{index}", draw(st.integers(1, 3))) for index in range(num_groups)]
    timetable = Timetable(groups, num_slots)
    for number in range(draw(st.integers(0, 2 * num_groups))):
        where, start = draw(st.sampled_from(groups)).id, draw(st.integers(0, num_slots - 1))
        footprint = draw(footprints(num_slots))
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
