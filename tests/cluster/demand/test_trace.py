"""What makes a pattern of demand, and what it says about a job."""

from __future__ import annotations

import math

import pytest

from tailrace.cluster.demand.trace import DemandSegment, DemandTrace


def test_duty_and_seconds_per_step_follow_from_the_segments() -> None:
    segments = (DemandSegment(offset_s=5.0, duration_s=10.0), DemandSegment(offset_s=30.0, duration_s=20.0))
    trace = DemandTrace(period_s=60.0, segments=segments, steps=2)
    assert (trace.busy_s, trace.duty, trace.step_s) == (30.0, 0.5, 30.0)
    assert trace == DemandTrace(period_s=60.0, segments=segments, steps=2)


@pytest.mark.parametrize("period_s", [0.0, -1.0, math.inf, math.nan])
def test_a_period_is_above_zero_and_finite(period_s: float) -> None:
    with pytest.raises(ValueError, match="needs a period above 0"):
        DemandTrace(period_s=period_s, segments=(DemandSegment(offset_s=0.0, duration_s=1.0),))


def test_segments_follow_each_other_within_the_period() -> None:
    one = DemandSegment(offset_s=0.0, duration_s=10.0)
    for segments in (
        (),
        (one, one),
        (DemandSegment(offset_s=55.0, duration_s=10.0),),
    ):
        with pytest.raises(ValueError, match="segment"):
            DemandTrace(period_s=60.0, segments=segments)


@pytest.mark.parametrize("steps", [0, -1, math.nan, math.inf])
def test_a_pattern_has_at_least_one_step(steps: float) -> None:
    with pytest.raises(ValueError, match="at least one step"):
        DemandTrace(period_s=60.0, segments=(DemandSegment(offset_s=0.0, duration_s=1.0),), steps=steps)  # type: ignore[arg-type]


IMPOSSIBLE = [
    ({"offset_s": -1.0}, "offset_s must be a number from 0 on, got -1.0"),
    ({"offset_s": math.nan}, "offset_s must be a number from 0 on, got nan"),
    ({"duration_s": 0.0}, "duration_s must be above 0 and finite, got 0.0"),
    ({"duration_s": math.inf}, "duration_s must be above 0 and finite, got inf"),
    ({"slack_s": -1.0}, "slack_s must be a number from 0 on, got -1.0"),
    ({"slack_s": math.inf}, "slack_s must be a number from 0 on, got inf"),
]


@pytest.mark.parametrize(("changes", "sentence"), IMPOSSIBLE)
def test_a_segment_with_an_impossible_number_is_refused(changes: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        DemandSegment(**({"offset_s": 0.0, "duration_s": 1.0} | changes))
