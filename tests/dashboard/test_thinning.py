"""Less to draw, and the same story."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.dashboard.thinning import buckets, drawn
from tailrace.observe.time_use.timeline import Lane, Span


@given(count=st.integers(0, 2000), limit=st.integers(1, 300))
def test_buckets_cover_everything_once_and_are_nearly_equal(count: int, limit: int) -> None:
    parts = buckets(count, limit)
    assert [index for part in parts for index in part] == list(range(count))
    assert len(parts) == min(count, limit)
    sizes = {len(part) for part in parts}
    assert not sizes or max(sizes) - min(sizes) <= 1


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="got 0"):
        buckets(5, 0)


def lane_of(num_spans: int) -> Lane:
    spans = [Span(kind="scoring", start=float(i), end=i + 0.25) for i in range(num_spans)]
    return Lane(name="rewards", start=0.0, end=float(num_spans), spans=tuple(spans))


def test_few_spans_are_drawn_as_they_are() -> None:
    lane = lane_of(4)
    assert drawn(lane, limit=100) == list(lane.with_idle())


def test_many_short_spans_are_drawn_as_what_took_most_of_their_time() -> None:
    assert drawn(lane_of(10_000), limit=100) == [Span(kind="idle", start=0.0, end=10_000.0)]


def test_merged_spans_cover_the_window_once_and_change_where_the_lane_does() -> None:
    spans = [Span(kind="scoring", start=float(i), end=i + (0.75 if i < 5_000 else 0.25)) for i in range(10_000)]
    found = drawn(Lane(name="rewards", start=0.0, end=10_000.0, spans=tuple(spans)), limit=99)
    assert [span.kind for span in found] == ["scoring", "idle"]
    assert (found[0].start, found[-1].end) == (0.0, 10_000.0)
    assert all(first.end == second.start for first, second in pairwise(found))
    assert found[1].start == pytest.approx(5_000, abs=10_000 / 99)


def test_two_long_spans_of_one_kind_stay_two() -> None:
    steps = (Span(kind="training", start=0.0, end=4.0), Span(kind="training", start=4.0, end=9.0))
    assert drawn(Lane(name="trainer", start=0.0, end=9.0, spans=steps), limit=10) == list(steps)


def test_a_long_span_among_short_ones_keeps_its_edges() -> None:
    short = [Span(kind="saving", start=i / 10, end=i / 10 + 0.05) for i in range(50)]
    long = Span(kind="training", start=5.0, end=55.0)
    lane = Lane(name="trainer", start=0.0, end=60.0, spans=(*short, long))
    assert long in drawn(lane, limit=20)


def test_a_merged_span_has_the_version_that_all_its_spans_have() -> None:
    def lane(versions: list[int]) -> Lane:
        spans = [
            Span(kind="generating", start=float(i), end=i + 0.9, version=version) for i, version in enumerate(versions)
        ]
        return Lane(name="instance 0", start=0.0, end=float(len(versions)), spans=tuple(spans))

    [span] = drawn(lane([3] * 1000), limit=10)
    assert span.words == "generating, version 3"
    [span] = drawn(lane([3] * 500 + [4] * 500), limit=10)
    assert span.words == "generating"
