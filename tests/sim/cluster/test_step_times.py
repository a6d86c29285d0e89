from __future__ import annotations

from random import Random
from statistics import fmean, pstdev

import pytest

from tailrace.sim.cluster.step_times import Overlap, StepTimes, alone_s, demand_trace, draw_steps

STEP = StepTimes(rollout_s=60.0, operations_s=(10.0, 20.0, 10.0))
SHORT = StepTimes(rollout_s=20.0, operations_s=(10.0, 20.0, 10.0))


def test_a_serial_job_trains_after_its_rollout_and_has_no_slack() -> None:
    trace = demand_trace([STEP, SHORT], Overlap.SERIAL)
    assert (trace.period_s, trace.steps) == (160.0, 2)
    assert [(s.offset_s, s.duration_s, s.slack_s) for s in trace.segments] == [(60.0, 40.0, 0.0), (120.0, 40.0, 0.0)]


def test_a_one_step_job_may_train_late_but_must_synchronize_on_time() -> None:
    trace = demand_trace([STEP], Overlap.ONE_STEP)
    assert trace.period_s == 70.0
    assert [(s.offset_s, s.duration_s, s.slack_s) for s in trace.segments] == [(0.0, 30.0, 30.0), (60.0, 10.0, 0.0)]


def test_training_beside_a_shorter_rollout_has_no_slack() -> None:
    trace = demand_trace([SHORT], Overlap.ONE_STEP)
    assert trace.period_s == 40.0
    assert trace.segments[0].slack_s == 0.0


@pytest.mark.parametrize(("overlap", "seconds"), [(Overlap.SERIAL, 305.0), (Overlap.ONE_STEP, 70 + 70 + 70 + 40)])
def test_the_time_alone_is_the_sum_of_the_steps(overlap: Overlap, seconds: float) -> None:
    # one-step: 5 s of loading pass beside the rollout; the last step has no rollout beside it
    assert alone_s([STEP] * 3, overlap, load_s=5.0) == seconds


def test_jitter_keeps_the_mean_and_has_the_stated_deviation() -> None:
    drawn = [step.rollout_s for step in draw_steps([STEP], 20_000, draw=Random(1), jitter=0.1)]
    assert fmean(drawn) == pytest.approx(60.0, rel=0.005)
    assert pstdev(drawn) == pytest.approx(6.0, rel=0.05)
    assert draw_steps([STEP], 2, draw=Random(1), jitter=0.0) == (STEP, STEP)


def test_a_step_without_a_synchronization_is_refused() -> None:
    with pytest.raises(ValueError, match="two or more operations"):
        StepTimes(rollout_s=1.0, operations_s=(1.0,))
