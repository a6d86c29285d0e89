"""A chart in its own units."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.dashboard.plane import Plane, ticks


@given(low=st.floats(-1e4, 1e4), length=st.floats(0.1, 1e6), limit=st.integers(2, 12))
def test_ticks_are_evenly_spaced_within_the_range_and_few(low: float, length: float, limit: int) -> None:
    found = ticks(low, low + length, limit)
    assert all(low - 1e-6 <= tick <= low + length + 1e-6 for tick in found)
    assert limit / 2.5 - 2 <= len(found) <= limit + 2
    gaps = [second - first for first, second in pairwise(found)]
    assert gaps == pytest.approx(gaps[:1] * len(gaps))


def test_ticks_are_round_numbers() -> None:
    assert ticks(0.5, 40.5, 10) == [5, 10, 15, 20, 25, 30, 35, 40]
    assert ticks(-0.1, 1.2, 5) == [0, 0.5, 1.0]


def test_steps_are_never_counted_in_halves() -> None:
    assert ticks(0.5, 3.5, 10, least=1) == [1, 2, 3]


def numbers(path: str) -> list[float]:
    return [float(text) for text in re.findall(r"-?\d+\.?\d*", path)]


def path_of(plane: Plane, kind: str) -> str:
    (found,) = re.findall(rf'<path class="{kind}"[^>]* d="([^"]*)"', plane.shapes((), ()))
    return str(found)


def test_the_corners_of_the_data_are_the_corners_of_the_plane() -> None:
    plane = Plane((10, 30), (0, 5))
    plane.line([10, 20, 30], [0, 2.5, 5], "#000000")
    assert numbers(path_of(plane, "line")) == [0, 100, 500, 50, 1000, 0]


def test_a_range_from_high_to_low_counts_downwards() -> None:
    plane = Plane((0, 10), (4, 0))
    plane.boxes([(0, 5, 1, 0), (5, 10, 4, 3)], "#123456")
    assert path_of(plane, "boxes") == "M0 0H500V25H0ZM500 75H1000V100H500Z"


def test_a_range_of_one_value_is_drawn_in_the_middle() -> None:
    plane = Plane((3, 3), (7, 7))
    assert (plane.x(3), plane.y(7)) == (500, 50)


def test_every_place_of_a_step_chart_has_exactly_one_thing_to_say() -> None:
    plane = Plane((0.5, 4.5), (0, 1))
    plane.say_at([1, 2, 4], ["one", "two", "four"])
    assert [(left, right, words) for left, right, _, _, words in plane.tips] == [
        (0, 250, "one"),
        (250, 625, "two"),
        (625, 1000, "four"),
    ]
    assert {(top, bottom) for _, _, top, bottom, _ in plane.tips} == {(0, 100)}
