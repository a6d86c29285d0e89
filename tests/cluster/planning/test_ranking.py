"""The best place against trying every group at every shift."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.planning.worlds import ALL, busy_slots, footprints, group, is_feasible, slots_of, timetables
from tailrace.cluster.ids import JobId, NodeGroupId
from tailrace.cluster.planning.fitting import Footprint, PlacedFootprint, SlotSegment
from tailrace.cluster.planning.interference import interference
from tailrace.cluster.planning.ranking import SearchCounts, best_place, has_room, is_commensurate
from tailrace.cluster.planning.timetable import Timetable
from tailrace.cluster.settings import ClusterRules

GROUPS = [NodeGroupId(f"g{index}") for index in range(4)]

rules_of_any_kind = st.builds(
    ClusterRules,
    slot_s=st.sampled_from([0.5, 1.0, 2.0]),
    bucket_s=st.sampled_from([0.0, 1.0, 3.0]),
    guard_s=st.sampled_from([0.0, 1.0, 2.5]),
    interference_weight=st.sampled_from([0.0, 4.0, 50.0]),
    max_jobs_per_group=st.integers(1, 4),
    max_duty=st.sampled_from([0.5, 0.8, 1.0]),
)


def windows_per_slot(busy: set[int]) -> float:
    return round(sum(slot not in busy and (slot - 1) % ALL in busy for slot in range(ALL)) / ALL, 12)


def key(timetable: Timetable, where: NodeGroupId, shift: int, placement: PlacedFootprint, rules: ClusterRules):
    """The criteria, straight from their definition."""
    residents, bucket_s = timetable.residents(where), rules.bucket_s
    disturbance = interference(placement, residents, math.ceil(rules.guard_s / rules.slot_s))
    shift_s = shift * rules.slot_s
    cost = (shift_s // bucket_s * bucket_s if bucket_s else shift_s) + rules.interference_weight * disturbance
    periods = [resident.footprint.period for resident in residents]
    incommensurate = sum(not is_commensurate(placement.footprint.period, period) for period in periods)
    fragments = windows_per_slot(busy_slots(timetable, where) | set(slots_of(placement)))
    return cost, disturbance, incommensurate, fragments, timetable.duty(where), where


def by_brute_force(timetable: Timetable, footprint: Footprint, start: int, rules: ClusterRules):
    """(criteria, shift) of the best place; None: there is none."""
    keys = []
    for where in GROUPS:
        duty = sum(resident.footprint.duty for resident in timetable.residents(where)) + footprint.duty
        num_jobs = len(timetable.residents(where)) + 1
        if timetable.is_lost(where) or num_jobs > rules.max_jobs_per_group or duty > rules.max_duty + 1e-6:
            continue
        for shift in range(footprint.period):
            placement = PlacedFootprint(footprint, start + shift)
            if is_feasible(timetable, where, placement):
                keys.append((key(timetable, where, shift, placement, rules), shift))
                break
    return min(keys, default=None)


@settings(max_examples=300)
@given(timetables(4), footprints(), st.integers(-5, 50), rules_of_any_kind)
def test_the_best_place_is_that_of_brute_force(
    timetable: Timetable, footprint: Footprint, start: int, rules: ClusterRules
) -> None:
    expected, counts = by_brute_force(timetable, footprint, start, rules), SearchCounts()
    found = best_place(timetable, footprint, GROUPS, start, rules, counts=counts)
    assert counts.total == len(GROUPS)
    if expected is None:
        assert found is None
    else:
        criteria, shift = expected
        assert found is not None
        assert (found.group, found.shift, found.interference) == (criteria[-1], shift, criteria[1])
        assert found.placement == PlacedFootprint(footprint, start + shift)
        timetable.reserve(JobId("new"), found.group, footprint, found.placement.start)
        timetable.check()


@given(timetables(4), footprints(), rules_of_any_kind)
def test_the_order_of_the_candidates_does_not_matter(
    timetable: Timetable, footprint: Footprint, rules: ClusterRules
) -> None:
    found = best_place(timetable, footprint, GROUPS, 0, rules)
    assert best_place(timetable, footprint, GROUPS[::-1], 0, rules) == found


def plain(period: int, count: int, *, duty: float | None = None) -> Footprint:
    segments = (SlotSegment(offset=0, count=count),)
    duty = count / period if duty is None else duty
    return Footprint(period=period, segments=segments, duty=duty)


def full_timetable(*residents: tuple[str, Footprint, int]) -> Timetable:
    timetable = Timetable([group(f"g{index}") for index in range(4)])
    for number, (where, footprint, start) in enumerate(residents):
        timetable.reserve(JobId(f"job-{number}"), NodeGroupId(where), footprint, start)
    return timetable


RULES = ClusterRules(guard_s=0.0, bucket_s=2.0)


def test_an_empty_group_is_looked_at_once() -> None:
    counts, timetable = SearchCounts(), full_timetable(("g2", plain(8, 2), 0))
    found = best_place(timetable, plain(8, 2), GROUPS, 0, RULES, counts=counts)
    assert found is not None
    assert found.group == "g0"
    assert (counts.same_as_other, counts.compared, counts.total) == (2, 2, 4)


def test_shifts_within_a_bucket_count_as_equal() -> None:
    """On g0 the job has to be shifted by one slot; on g1 it fits at once, but beside another period."""
    timetable = full_timetable(("g0", plain(8, 1), 0), ("g1", plain(12, 1), 3))
    exact = ClusterRules(guard_s=0.0, bucket_s=0.0)
    places = [best_place(timetable, plain(8, 1), GROUPS[:2], 0, rules) for rules in (RULES, exact)]
    assert [(place.group, place.shift) for place in places if place] == [("g0", 1), ("g1", 0)]


def test_of_equally_near_places_the_one_beside_a_commensurate_period_is_taken() -> None:
    """On both groups the job fits at once and disturbs nobody. g0 has fewer windows left, less duty and the lower id,
    but its job has a period of 12 slots."""
    timetable = full_timetable(("g0", plain(12, 1), 3), ("g1", plain(8, 1), 4))
    found = best_place(timetable, plain(8, 1), GROUPS[:2], 0, RULES)
    assert found is not None
    assert (found.group, found.shift, found.interference) == ("g1", 0, 0.0)
    alone = best_place(timetable, plain(8, 1), GROUPS[:1], 0, RULES)
    assert alone is not None
    assert (alone.shift, alone.interference) == (0, 0.0)


def test_groups_without_free_time_are_counted() -> None:
    whole = plain(8, 8, duty=0.1)
    timetable = full_timetable(*((where, whole, 0) for where in GROUPS))
    counts = SearchCounts()
    assert best_place(timetable, plain(8, 1), GROUPS, 0, RULES, counts=counts) is None
    assert (counts.no_fit, counts.total) == (4, 4)


@pytest.mark.parametrize(("duty", "fits"), [(0.55, True), (0.56, False)])
def test_a_group_has_room_up_to_the_duty_cap(duty: float, fits: bool) -> None:
    timetable = full_timetable(("g0", plain(8, 2), 0))
    assert has_room(timetable, GROUPS[0], plain(8, 1, duty=duty), RULES) == fits


def test_a_group_has_room_up_to_the_number_of_jobs_and_while_it_is_there() -> None:
    timetable = full_timetable(("g0", plain(8, 1), 0), ("g0", plain(8, 1), 1))
    assert has_room(timetable, GROUPS[0], plain(8, 1), RULES)
    timetable.reserve(JobId("third"), GROUPS[0], plain(8, 1), 2)
    assert not has_room(timetable, GROUPS[0], plain(8, 1), RULES)
    timetable.lose(GROUPS[1])
    assert not has_room(timetable, GROUPS[1], plain(8, 1), RULES)


@pytest.mark.parametrize(
    ("period", "other", "expected"),
    [
        (100, 100, True), (100, 102, True), (100, 103, False), (289, 578, True), (589, 289, True), (285, 590, False),
        (100, 150, False), (100, 800, True), (100, 900, False),
    ],
)  # fmt: skip
def test_periods_are_commensurate_near_whole_ratios(period: int, other: int, expected: bool) -> None:
    assert is_commensurate(period, other) == expected
    assert is_commensurate(other, period) == expected
