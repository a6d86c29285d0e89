"""Interval sets against a plain set of slots, and the canonical form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cluster.planning.intervals import IntervalSet


def slots(length: int, start: int, count: int) -> set[int]:
    return {slot % length for slot in range(start, start + count)}


@st.composite
def sets_of_slots(draw: st.DrawFn) -> tuple[IntervalSet, set[int]]:
    """An interval set and the slots that were made busy in it."""
    length = draw(st.integers(1, 24))
    busy, expected = IntervalSet(length), set()
    for _ in range(draw(st.integers(0, 8))):
        start, count = draw(st.integers(0, length - 1)), draw(st.integers(1, length))
        if not slots(length, start, count) & expected:
            busy.add(start, count)
            expected |= slots(length, start, count)
    return busy, expected


def runs(length: int, members: set[int]) -> list[tuple[int, int]]:
    """Maximal stretches of the ring as (start, count)."""
    if len(members) == length:
        return [(0, length)]
    starts = sorted(slot for slot in members if (slot - 1) % length not in members)
    counts = [next(n for n in range(1, length + 1) if (start + n) % length not in members) for start in starts]
    return list(zip(starts, counts, strict=True))


@given(sets_of_slots())
def test_intervals_are_canonical_and_hold_the_busy_slots(pair: tuple[IntervalSet, set[int]]) -> None:
    busy, expected = pair
    busy.check()
    assert {slot for start, end in busy.intervals for slot in range(start, end)} == expected
    assert busy.num_busy == len(expected)
    assert busy.is_empty == (not expected)


@given(sets_of_slots(), st.data())
def test_a_range_is_free_if_none_of_its_slots_is_busy(pair: tuple[IntervalSet, set[int]], data: st.DataObject) -> None:
    busy, expected = pair
    start, count = data.draw(st.integers(0, busy.length - 1)), data.draw(st.integers(1, busy.length))
    is_free = not slots(busy.length, start, count) & expected
    assert busy.is_free(start, count) == is_free
    assert (busy.busy_end(start, count) is None) == is_free


@given(sets_of_slots(), st.data())
def test_no_shift_below_the_busy_end_is_free(pair: tuple[IntervalSet, set[int]], data: st.DataObject) -> None:
    busy, expected = pair
    start, count = data.draw(st.integers(0, busy.length - 1)), data.draw(st.integers(1, busy.length))
    end = busy.busy_end(start, count)
    if end is not None:
        assert end >= 1
        assert all(slots(busy.length, start + shift, count) & expected for shift in range(end))
        assert (start + end - 1) % busy.length in expected


@given(sets_of_slots(), st.data())
def test_removing_what_was_added_restores_the_exact_set(
    pair: tuple[IntervalSet, set[int]], data: st.DataObject
) -> None:
    busy, expected = pair
    start, count = data.draw(st.integers(0, busy.length - 1)), data.draw(st.integers(1, busy.length))
    before = busy.copy()
    if slots(busy.length, start, count) & expected:
        with pytest.raises(ValueError, match="not all free"):
            busy.add(start, count)
    else:
        busy.add(start, count)
        busy.check()
        assert busy != before
        busy.remove(start, count)
    assert busy == before


@given(sets_of_slots(), st.data())
def test_only_busy_slots_can_be_removed(pair: tuple[IntervalSet, set[int]], data: st.DataObject) -> None:
    busy, expected = pair
    start, count = data.draw(st.integers(0, busy.length - 1)), data.draw(st.integers(1, busy.length))
    before, removed = busy.copy(), slots(busy.length, start, count)
    if removed <= expected:
        busy.remove(start, count)
        busy.check()
        assert {slot for low, high in busy.intervals for slot in range(low, high)} == expected - removed
    else:
        with pytest.raises(ValueError, match="not all busy"):
            busy.remove(start, count)
        assert busy == before


@given(sets_of_slots())
def test_free_windows_are_the_maximal_free_stretches_of_the_ring(pair: tuple[IntervalSet, set[int]]) -> None:
    busy, expected = pair
    free = set(range(busy.length)) - expected
    assert sorted(busy.free_windows()) == runs(busy.length, free)


@given(sets_of_slots(), st.data())
def test_the_number_of_windows_with_more_ranges_is_that_after_adding_them(
    pair: tuple[IntervalSet, set[int]], data: st.DataObject
) -> None:
    busy, _ = pair
    after, ranges = busy.copy(), []
    for _ in range(data.draw(st.integers(0, 4))):
        start, count = data.draw(st.integers(0, busy.length - 1)), data.draw(st.integers(1, busy.length))
        if after.is_free(start, count):
            after.add(start, count)
            ranges.append((start, count))
    assert busy.num_windows_with(ranges) == len(after.free_windows())


def test_a_window_across_the_seam_is_one_window() -> None:
    busy = IntervalSet(10)
    busy.add(3, 2)
    assert busy.free_windows() == [(5, 8)]
    busy.add(8, 4)
    assert busy.intervals == [(0, 2), (3, 5), (8, 10)]
    assert busy.free_windows() == [(2, 1), (5, 3)]
    assert busy.busy_end(9, 4) == 3
    assert busy.busy_end(2, 1) is None
    assert repr(busy) == "IntervalSet(10, [(0, 2), (3, 5), (8, 10)])"


@pytest.mark.parametrize(("start", "count"), [(-1, 1), (4, 1), (0, 0), (0, 5)])
def test_a_range_must_lie_on_the_ring(start: int, count: int) -> None:
    with pytest.raises(ValueError, match="a ring of 4 slots"):
        IntervalSet(4).add(start, count)


def test_a_ring_has_slots_and_sets_of_other_rings_differ() -> None:
    with pytest.raises(ValueError, match="at least one slot, got 0"):
        IntervalSet(0)
    assert IntervalSet(3) != IntervalSet(4)
    assert IntervalSet(3) != "IntervalSet(3)"


@pytest.mark.parametrize(("starts", "ends"), [([1, 3], [3, 5]), ([3], [3]), ([4, 1], [5, 2]), ([8], [11]), ([-1], [2])])
def test_a_form_that_is_not_the_one_form_of_its_slots_is_noticed(starts: list[int], ends: list[int]) -> None:
    busy = IntervalSet(10)
    busy._starts, busy._ends = starts, ends
    with pytest.raises(AssertionError):
        busy.check()
