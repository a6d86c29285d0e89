"""The capacity profile against a plain list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cluster.planning.capacity import CapacityProfile


@st.composite
def profiles(draw: st.DrawFn) -> tuple[CapacityProfile, list[int]]:
    length, capacity = draw(st.integers(1, 20)), draw(st.integers(0, 9))
    profile, expected = CapacityProfile(length, capacity), [capacity] * length
    for _ in range(draw(st.integers(0, 10))):
        start, count = draw(st.integers(0, length - 1)), draw(st.integers(1, length))
        amount = draw(st.integers(-4, 4))
        profile.add(start, count, amount)
        for slot in range(start, start + count):
            expected[slot % length] += amount
    return profile, expected


@given(profiles(), st.data())
def test_the_profile_answers_like_a_list(pair: tuple[CapacityProfile, list[int]], data: st.DataObject) -> None:
    profile, expected = pair
    length = len(expected)
    start, count = data.draw(st.integers(0, length - 1)), data.draw(st.integers(1, length))
    amount = data.draw(st.integers(-5, 15))
    part = [expected[slot % length] for slot in range(start, start + count)]
    assert profile.values() == expected
    assert profile.overall_minimum == min(expected)
    assert profile.minimum(start, count) == min(part)
    below = [index for index, value in enumerate(part) if value < amount]
    assert profile.last_below(start, count, amount) == (below[-1] if below else None)


@pytest.mark.parametrize(("start", "count"), [(-1, 1), (4, 1), (0, 0), (0, 5)])
def test_a_range_must_lie_on_the_ring(start: int, count: int) -> None:
    profile = CapacityProfile(4, 1)
    for ask in (lambda: profile.add(start, count, 1), lambda: profile.minimum(start, count)):
        with pytest.raises(ValueError, match="a ring of 4 slots"):
            ask()


def test_a_ring_has_slots() -> None:
    with pytest.raises(ValueError, match="at least one slot, got 0"):
        CapacityProfile(0, 1)


def test_a_long_ring() -> None:
    profile = CapacityProfile(28_800, 400)
    profile.add(28_799, 2, -400)
    assert profile.minimum(1, 28_798) == 400
    assert profile.minimum(28_000, 28_799) == 0
    assert profile.last_below(1, 28_800, 1) == 28_799
    assert profile.last_below(1, 28_798, 1) is None
