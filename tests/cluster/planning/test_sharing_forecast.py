"""Traces played through by hand."""

from __future__ import annotations

from tailrace.cluster.demand.trace import DemandSegment, DemandTrace
from tailrace.cluster.planning.sharing_forecast import Use, forecast


def trace(period_s: float, *segments: tuple[float, float, float], steps: int = 1) -> DemandTrace:
    parts = tuple(DemandSegment(offset_s=at, duration_s=seconds, slack_s=slack_s) for at, seconds, slack_s in segments)
    return DemandTrace(period_s=period_s, segments=parts, steps=steps)


def test_a_job_alone_begins_at_once_and_is_not_slower() -> None:
    found = forecast([trace(10.0, (0.0, 2.0, 0.0), (5.0, 1.0, 0.0))], [0.0], switch_s=3.0, num_periods=2)
    assert [(use.switch_at, use.start, use.end) for use in found.uses] == [
        (0.0, 0.0, 2.0),
        (5.0, 5.0, 6.0),
        (10.0, 10.0, 12.0),
        (15.0, 15.0, 16.0),
    ]
    assert (found.slowdowns, found.switches_per_step) == ((1.0,), 0.0)


def test_two_jobs_that_ask_at_once_take_turns_and_switches_cost_time() -> None:
    """The second job has a slack of 2 s. It is late by 5 s, then by 3 s: that makes 3 s and 1 s of delay."""
    jobs = [trace(20.0, (0.0, 4.0, 0.0)), trace(20.0, (0.0, 4.0, 2.0), steps=2)]
    found = forecast(jobs, [0.0, 0.0], switch_s=1.0, num_periods=2)
    assert found.uses[:3] == (
        Use(index=0, switch_at=0.0, start=0.0, end=4.0),
        Use(index=1, switch_at=4.0, start=5.0, end=9.0),
        Use(index=0, switch_at=20.0, start=21.0, end=25.0),
    )
    assert found.uses[3] == Use(index=1, switch_at=25.0, start=26.0, end=30.0)
    assert len(found.uses) == 4
    assert found.slowdowns == (1.0 + 1.0 / 40, 1.0 + 4.0 / 40)
    assert found.switches_per_step == 3 / 6


def test_the_first_shift_does_not_count() -> None:
    found = forecast([trace(10.0, (1.0, 2.0, 0.0))], [7.0], num_periods=1)
    assert [use.start for use in found.uses] == [8.0]
    assert found.slowdowns == (1.0,)


def test_a_switch_costs_nothing_unless_it_is_given_and_nothing_follows_from_no_periods() -> None:
    jobs = [trace(20.0, (0.0, 4.0, 0.0)), trace(20.0, (4.0, 4.0, 0.0))]
    assert [use.start for use in forecast(jobs, [0.0, 0.0], num_periods=1).uses] == [0.0, 4.0]
    nothing = forecast(jobs, [0.0, 0.0], num_periods=0)
    assert (nothing.uses, nothing.slowdowns, nothing.switches_per_step) == ((), (1.0, 1.0), 0.0)
