"""Property 1 of the specification (placement): disjoint, exact release, all or nothing; lost groups."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.planning.worlds import busy_slots, footprints, group, is_feasible, slots_of, timetables
from tailrace.cluster.ids import JobId, NodeGroupId
from tailrace.cluster.planning.fitting import Footprint, PlacedFootprint, SlotSegment
from tailrace.cluster.planning.timetable import Timetable

G0, G1 = NodeGroupId("g0"), NodeGroupId("g1")
A, B = JobId("a"), JobId("b")


def snapshot(timetable: Timetable) -> tuple[object, ...]:
    groups = (G0, G1)
    return (
        [list(timetable.residents(where)) for where in groups],
        [timetable.duty(where) for where in groups],
        [timetable.num_jobs(where) for where in groups],
        [timetable.is_lost(where) for where in groups],
    )


@given(timetables(2))
def test_no_slot_is_used_twice(timetable: Timetable) -> None:
    timetable.check()
    for where in (G0, G1):
        slots = [slot for placed in timetable.residents(where) for slot in slots_of(placed)]
        assert len(set(slots)) == len(slots)


@given(timetables(2), footprints(), st.integers(0, 48))
def test_a_reservation_is_made_whole_or_not_at_all_and_release_restores_the_exact_state(
    timetable: Timetable, footprint: Footprint, start: int
) -> None:
    placement, before = PlacedFootprint(footprint, start), snapshot(timetable)
    if timetable.is_lost(G0) or not is_feasible(timetable, G0, placement):
        with pytest.raises(ValueError, match=r"does not fit|is lost"):
            timetable.reserve(A, G0, footprint, start)
    else:
        reservation = timetable.reserve(A, G0, footprint, start)
        timetable.check()
        assert reservation.placement == placement
        assert timetable.reservation_of(A) == reservation
        assert set(slots_of(placement)) <= busy_slots(timetable, G0)
        timetable.release(reservation)
    timetable.check()
    assert snapshot(timetable) == before
    assert timetable.reservation_of(A) is None


@given(timetables(2), st.data())
def test_any_order_of_release_keeps_the_rest(timetable: Timetable, data: st.DataObject) -> None:
    numbers = data.draw(st.permutations(range(4)))
    for number in numbers:
        reservation = timetable.reservation_of(JobId(f"job-{number}"))
        if reservation is not None:
            timetable.release(reservation)
            timetable.check()
    for where in (G0, G1):
        assert (timetable.residents(where), timetable.duty(where), timetable.num_jobs(where)) == ([], 0.0, 0)


@given(timetables(2), st.sampled_from([G0, G1]))
def test_a_lost_group_counts_nothing_and_comes_back_as_it_was(timetable: Timetable, where: NodeGroupId) -> None:
    timetable.restore(G0)
    timetable.restore(G1)
    before = snapshot(timetable)
    timetable.lose(where)
    timetable.lose(where)
    timetable.check()
    assert timetable.is_lost(where)
    timetable.restore(where)
    timetable.restore(where)
    timetable.check()
    assert snapshot(timetable) == before


def plain(period: int, count: int) -> Footprint:
    return Footprint(period=period, segments=(SlotSegment(offset=0, count=count),), duty=count / period)


def test_a_stale_reservation_cannot_be_released() -> None:
    timetable = Timetable([group("g0"), group("g1")])
    first = timetable.reserve(A, G0, plain(6, 2), 0)
    timetable.release(first)
    again = timetable.reserve(A, G0, plain(6, 2), 0)
    assert again.generation > first.generation
    with pytest.raises(ValueError, match="reservation 0 of job a is not in force"):
        timetable.release(first)
    assert timetable.reservation_of(A) == again
    timetable.check()


def test_reservations_that_make_no_sense_are_refused() -> None:
    timetable = Timetable([group("g0"), group("g1")])
    timetable.reserve(A, G0, plain(6, 2), 0)
    with pytest.raises(ValueError, match="job a has a reservation on g0 already"):
        timetable.reserve(A, G1, plain(6, 2), 0)
    with pytest.raises(ValueError, match="job b does not fit on g0 at slot 7"):
        timetable.reserve(B, G0, plain(6, 2), 7)
    timetable.lose(G1)
    with pytest.raises(ValueError, match="node group g1 is lost"):
        timetable.reserve(B, G1, plain(6, 2), 0)
    timetable.check()


def test_a_job_of_a_lost_group_can_be_released() -> None:
    timetable = Timetable([group("g0", 2), group("g1", 3)])
    reservation = timetable.reserve(A, G0, plain(6, 2), 0)
    timetable.lose(G0)
    timetable.release(reservation)
    timetable.check()
    timetable.restore(G0)
    assert (timetable.num_jobs(G0), timetable.is_lost(G0)) == (0, False)


def test_the_check_can_fail() -> None:
    timetable = Timetable([group("g0"), group("g1")])
    timetable.reserve(A, G0, plain(6, 2), 0)
    plan = timetable.plan(G0)
    plan.duty = 0.5
    with pytest.raises(AssertionError, match="miscounted"):
        timetable.check()
    unseen = PlacedFootprint(plain(7, 2), 3)
    plan.reservations[B] = replace(plan.reservations[A], job=B, placement=unseen)
    timetable._group_of[B] = G0
    plan.count()
    with pytest.raises(AssertionError, match="two jobs have the same slot"):
        timetable.check()
