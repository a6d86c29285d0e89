from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.sizing.resident_layers import LengthPoint, OffloadProfile, predicted_seconds, resident_layers

GIB = 2**30


def point(length: int, working_bytes: int, layer_s: float = 0.001) -> LengthPoint:
    return LengthPoint(length=length, working_bytes=working_bytes, layer_s=layer_s)


def profile(*points: LengthPoint, num_layers: int = 28, layer_bytes: int = 466_000_000) -> OffloadProfile:
    """About Qwen2.5-7B in bfloat16."""
    return OffloadProfile(
        num_layers=num_layers,
        layer_bytes=layer_bytes,
        outside_bytes=2 * GIB,
        held_bytes=7_168,
        copy_s=0.009,
        points=points or (point(1024, GIB // 16, 0.001), point(16384, GIB, 0.014)),
    )


@st.composite
def profiles(draw: st.DrawFn) -> OffloadProfile:
    lengths = sorted(draw(st.sets(st.integers(1, 5000), min_size=1, max_size=4)))
    return OffloadProfile(
        num_layers=draw(st.integers(1, 12)),
        layer_bytes=draw(st.integers(1, 1000)),
        outside_bytes=draw(st.integers(0, 1000)),
        held_bytes=draw(st.integers(0, 3)),
        copy_s=1.0,
        points=tuple(point(length, draw(st.integers(0, 3000))) for length in lengths),
    )


@given(profiles(), st.integers(0, 30_000), st.integers(1, 8000), st.integers(0, 2000))
def test_the_number_is_the_largest_that_fits_and_saves_memory(
    given: OffloadProfile, budget_bytes: int, longest: int, others: int
) -> None:
    load = {"longest": longest, "num_tokens": longest + others}
    fitting = [number for number in range(given.num_layers + 1) if given.device_bytes(number, **load) <= budget_bytes]
    # One or two offloaded layers take as much memory as none, or more; only all of them resident makes sense then.
    everything = given.device_bytes(given.num_layers, **load)
    useful = [
        number
        for number in fitting
        if number in (0, given.num_layers) or given.device_bytes(number, **load) < everything
    ]
    assert resident_layers(given, budget_bytes=budget_bytes, **load) == max(useful, default=None)


def test_longer_sequences_leave_room_for_fewer_layers() -> None:
    found = [
        resident_layers(profile(), budget_bytes=8 * GIB, longest=longest, num_tokens=longest)
        for longest in (1024, 4096, 16384, 65536, 131072)
    ]
    assert found == [11, 11, 9, 1, None]


def test_many_short_sequences_hold_memory_too() -> None:
    numbers = [
        resident_layers(profile(), budget_bytes=8 * GIB, longest=1024, num_tokens=num_tokens)
        for num_tokens in (1024, 65536, 262144)
    ]
    assert numbers == [11, 10, 7]


def test_a_budget_that_holds_everything_keeps_all_layers() -> None:
    everything = profile().device_bytes(28, longest=1024, num_tokens=1024)
    load = {"longest": 1024, "num_tokens": 1024}
    assert resident_layers(profile(), budget_bytes=everything, **load) == 28
    # With two buffers, 26 or 27 resident layers would take as much memory as all 28, or more.
    assert resident_layers(profile(), budget_bytes=everything - 1, **load) == 25


def test_bytes_and_seconds_lie_on_lines_between_the_lengths_that_were_measured() -> None:
    measured = profile(point(100, 1000, 1.0), point(200, 3000, 2.0), point(400, 3001, 5.0))
    assert [measured.working_bytes(length) for length in (1, 100, 150, 200, 300, 400)] == [
        1000, 1000, 2000, 3000, 3001, 3001,
    ]  # fmt: skip
    assert measured.working_bytes(600) == 3002
    assert [measured.layer_s(length) for length in (1, 100, 150, 300, 400)] == [1.0, 1.0, 1.5, 3.5, 5.0]
    assert measured.layer_s(800) == 20.0
    assert profile(point(100, 1000)).working_bytes(250) == 2500


@pytest.mark.parametrize("lengths", [(), (5, 5), (7, 3), (0, 4)])
def test_lengths_that_do_not_increase_are_refused(lengths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="lengths above 0 that increase"):
        OffloadProfile(
            num_layers=1,
            layer_bytes=1,
            outside_bytes=0,
            held_bytes=0,
            copy_s=0.0,
            points=tuple(point(length, 0) for length in lengths),
        )


def test_seconds_of_a_pass_are_those_of_copies_or_of_computation() -> None:
    assert predicted_seconds(profile(), [1024], 28) == pytest.approx(28 * 0.001)
    assert predicted_seconds(profile(), [1024], 0) == pytest.approx(28 * 0.009)
    assert predicted_seconds(profile(), [16384], 0) == pytest.approx(28 * 0.014)
    assert predicted_seconds(profile(), [16384], 0, is_overlapped=False) == pytest.approx(28 * 0.023)
    assert predicted_seconds(profile(), [16384, 16384], 0) == pytest.approx(28 * 0.028)
