"""Demand traces from logs of operations."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cluster.demand.operations import Operation, trace_of

LOG_PROB, UPDATE, SYNC = 10.0, 40.0, 8.0


def log(step_lengths: list[float], *, jitter: float = 0.0, seed: int = 0, gap: float = 0.0) -> list[Operation]:
    """Three operations at the start of each step."""
    rng, now, operations = random.Random(seed), 1000.0, []
    for step, length in enumerate(step_lengths):
        begin = now
        for kind, seconds in (("log-prob", LOG_PROB), ("update", UPDATE), ("sync", SYNC)):
            took = seconds * rng.uniform(1 - jitter, 1 + jitter)
            operations.append(Operation(kind=kind, started=begin, seconds=took, step=step))
            begin += took + gap
        now += length * rng.uniform(1 - jitter, 1 + jitter)
    return operations


def test_operations_without_a_gap_are_one_segment() -> None:
    trace = trace_of(log([300.0] * 5), slack_s=3.0)
    assert trace is not None
    assert (trace.period_s, trace.steps) == (300.0, 1)
    assert [(part.offset_s, part.duration_s, part.slack_s) for part in trace.segments] == [(0.0, 58.0, 3.0)]


def test_a_gap_separates_segments() -> None:
    trace = trace_of(log([300.0] * 5, gap=2.0))
    assert trace is not None
    assert [(part.offset_s, part.duration_s) for part in trace.segments] == [(0.0, 10.0), (12.0, 40.0), (54.0, 8.0)]
    joined = trace_of(log([300.0] * 5, gap=2.0), max_gap_s=2.0)
    assert joined is not None
    assert [part.duration_s for part in joined.segments] == [62.0]


def test_tail_batching_gives_a_period_of_five_steps() -> None:
    trace = trace_of(log([150.0, 150.0, 150.0, 150.0, 400.0] * 3), ended=4000.0)
    assert trace is not None
    assert (trace.steps, trace.period_s, trace.step_s) == (5, 1000.0, 200.0)
    assert [part.offset_s for part in trace.segments] == [0.0, 150.0, 300.0, 450.0, 600.0]
    assert trace.duty == pytest.approx(5 * 58 / 1000)


@given(
    st.lists(st.sampled_from([200.0, 400.0]), min_size=1, max_size=4),
    st.integers(3, 6),
    st.floats(0.0, 0.1),
    st.integers(0, 1000),
)
def test_the_trace_of_a_jittered_log_is_near_the_true_one(
    pattern: list[float], repetitions: int, jitter: float, seed: int
) -> None:
    steps = pattern * repetitions
    trace = trace_of(log(steps, jitter=jitter, seed=seed))
    assert trace is not None
    assert trace.step_s == pytest.approx(sum(pattern) / len(pattern), rel=0.25)
    per_step = len(trace.segments) / trace.steps
    assert per_step == 1
    for part in trace.segments:
        assert 58 * (1 - jitter) - 1e-6 <= part.duration_s <= 58 * (1 + jitter) + 1e-6


def test_nine_of_ten_durations_are_within_the_planned_one() -> None:
    operations = [
        Operation(kind="update", started=100.0 * step, seconds=10.0 + (step % 10) * 0.1, step=step)
        for step in range(21)
    ]
    trace = trace_of(operations, steps_per_period=1)
    assert trace is not None
    assert trace.segments[0].duration_s == pytest.approx(10.8)


def test_a_step_with_an_unusual_number_of_segments_is_left_out() -> None:
    operations = log([300.0] * 6)
    operations.append(Operation(kind="checkpoint", started=1000.0 + 3 * 300 + 100, seconds=20.0, step=3))
    trace = trace_of(operations, steps_per_period=1)
    assert trace is not None
    assert [(part.offset_s, part.duration_s) for part in trace.segments] == [(0.0, 58.0)]


def test_the_last_step_counts_only_if_its_end_is_known() -> None:
    assert trace_of([]) is None
    assert trace_of(log([300.0])) is None
    trace = trace_of(log([300.0]), ended=1250.0)
    assert trace is not None
    assert trace.period_s == 250.0


def test_a_segment_ends_before_the_next_one_even_if_its_planned_duration_is_longer() -> None:
    operations = []
    for step in range(10):
        late = 30.0 if step % 3 == 0 else 0.0
        operations += [
            Operation(kind="log-prob", started=100.0 * step, seconds=20.0 + late, step=step),
            Operation(kind="update", started=100.0 * step + 30.0 + late, seconds=40.0, step=step),
        ]
    trace = trace_of(operations, steps_per_period=1)
    assert trace is not None
    first, second = trace.segments
    assert first.end_s == second.offset_s < 50.0


@given(st.integers(2, 9), st.floats(10.0, 100.0), st.floats(0.01, 1.0), st.integers(0, 100))
def test_a_job_that_is_always_busy_has_a_duty_of_at_most_one(
    num_steps: int, seconds: float, jitter: float, seed: int
) -> None:
    rng, now, operations = random.Random(seed), 0.1, []
    for step in range(num_steps):
        took = seconds * (1 + jitter * rng.random())
        operations.append(Operation(kind="update", started=now, seconds=took, step=step))
        now += took
    trace = trace_of(operations)
    assert trace is not None
    assert 0.5 <= trace.duty <= 1.0


def test_operations_that_took_no_time_are_no_segment() -> None:
    nothing = [Operation(kind="mark", started=1000.0 + 300 * step + 200, seconds=0.0, step=step) for step in range(5)]
    assert trace_of(log([300.0] * 5) + nothing) == trace_of(log([300.0] * 5))


def test_a_period_must_fit_into_the_log() -> None:
    with pytest.raises(ValueError, match="a period of 5 steps cannot be read from a log of 2 whole steps"):
        trace_of(log([300.0] * 3), steps_per_period=5)
