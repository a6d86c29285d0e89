"""Property 1 of the specification (placement): disjoint, complete, exact release, all or nothing; lost groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.planning.worlds import footprints, group, is_feasible, slots_of, timetables
from tailrace.cluster.ids import JobId, NodeGroupId
from tailrace.cluster.planning.fitting import Footprint, PlacedFootprint, SlotSegment
from tailrace.cluster.planning.timetable import Timetable

NUM_SLOTS = 24
G0, G1 = NodeGroupId("g0"), NodeGroupId("g1")
A, B = JobId("a"), JobId("b")


def snapshot(timetable: Timetable) -> tuple[object, ...]:
    groups = (G0, G1)
    return (
        [timetable.busy(where).copy() for where in groups],
        [timetable.residents(where) for where in groups],
        [timetable.duty(where) for where in groups],
        timetable.profile.values(),
    )


@given(timetables(NUM_SLOTS, 2))
def test_free_and_reserved_slots_make_up_the_horizon(timetable: Timetable) -> None:
    timetable.check()


@given(timetables(NUM_SLOTS, 2), footprints(NUM_SLOTS), st.integers(0, 2 * NUM_SLOTS))
def test_a_reservation_is_made_whole_or_not_at_all_and_release_restores_the_exact_state(
    timetable: Timetable, footprint: Footprint, start: int
) -> None:
    placement, before = PlacedFootprint(footprint, start % NUM_SLOTS), snapshot(timetable)
    if timetable.is_lost(G0) or not is_feasible(timetable, G0, placement):
        with pytest.raises(ValueError, match=r"does not fit|is lost"):
            timetable.reserve(A, G0, footprint, start)
    else:
        reservation = timetable.reserve(A, G0, footprint, start)
        timetable.check()
        assert reservation.placement == placement
        assert timetable.reservation_of(A) == reservation
        assert not any(timetable.busy(G0).is_free(slot, 1) for slot in slots_of(placement))
        timetable.release(reservation)
    timetable.check()
    assert snapshot(timetable) == before
    assert timetable.reservation_of(A) is None


@given(timetables(NUM_SLOTS, 2), st.data())
def test_any_order_of_release_keeps_the_rest(timetable: Timetable, data: st.DataObject) -> None:
    numbers = data.draw(st.permutations(range(4)))
    for number in numbers:
        reservation = timetable.reservation_of(JobId(f"job-{number}"))
        if reservation is not None:
            timetable.release(reservation)
            timetable.check()
    assert timetable.busy(G0).is_empty
    assert timetable.busy(G1).is_empty
    assert (timetable.duty(G0), timetable.num_jobs(G0)) == (0.0, 0)


@given(timetables(NUM_SLOTS, 2), st.sampled_from([G0, G1]))
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


def plain(period: int, count: int, num_slots: int = NUM_SLOTS) -> Footprint:
    segments = (SlotSegment(offset=0, count=count),)
    return Footprint(num_slots=num_slots, period=period, segments=segments, duty=count / period)


def test_a_stale_reservation_cannot_be_released() -> None:
    timetable = Timetable([group("g0"), group("g1")], NUM_SLOTS)
    first = timetable.reserve(A, G0, plain(6, 2), 0)
    timetable.release(first)
    again = timetable.reserve(A, G0, plain(6, 2), 0)
    assert again.generation > first.generation
    with pytest.raises(ValueError, match="reservation 0 of job a is not in force"):
        timetable.release(first)
    assert timetable.reservation_of(A) == again
    timetable.check()


def test_reservations_that_make_no_sense_are_refused() -> None:
    timetable = Timetable([group("g0"), group("g1")], NUM_SLOTS)
    timetable.reserve(A, G0, plain(6, 2), 0)
    with pytest.raises(ValueError, match="job a has a reservation on g0 already"):
        timetable.reserve(A, G1, plain(6, 2), 0)
    with pytest.raises(ValueError, match="the footprint is for 12 slots, the timetable has 24"):
        timetable.reserve(B, G1, plain(6, 2, num_slots=12), 0)
    with pytest.raises(ValueError, match="job b does not fit on g0 at slot 7"):
        timetable.reserve(B, G0, plain(6, 2), 7)
    timetable.lose(G1)
    with pytest.raises(ValueError, match="node group g1 is lost"):
        timetable.reserve(B, G1, plain(6, 2), 0)
    timetable.check()


def test_a_job_of_a_lost_group_can_be_released() -> None:
    timetable = Timetable([group("g0", 2), group("g1", 3)], NUM_SLOTS)
    reservation = timetable.reserve(A, G0, plain(6, 2), 0)
    assert timetable.profile.values()[:3] == [3, 3, 5]
    timetable.lose(G0)
    assert timetable.profile.values()[:3] == [3, 3, 3]
    timetable.release(reservation)
    timetable.check()
    timetable.restore(G0)
    assert timetable.profile.values() == [5] * NUM_SLOTS
    assert (timetable.num_nodes(G0), timetable.num_jobs(G0)) == (2, 0)


def test_the_check_can_fail() -> None:
    timetable = Timetable([group("g0"), group("g1")], NUM_SLOTS)
    timetable.reserve(A, G0, plain(6, 2), 0)
    timetable.profile.add(3, 1, 1)
    with pytest.raises(AssertionError, match="recount"):
        timetable.check()
    timetable.profile.add(3, 1, -1)
    timetable.busy(G0).add(3, 1)
    with pytest.raises(AssertionError, match="differ from the reservations"):
        timetable.check()
