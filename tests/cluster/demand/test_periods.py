"""The number of steps after which a job repeats, under noise."""

from __future__ import annotations

import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cluster.demand.periods import NOISE, period_in_steps


def is_primitive(pattern: list[float]) -> bool:
    """Whether the pattern is not itself a repetition of a shorter one."""
    return not any(pattern == pattern[:part] * (len(pattern) // part) for part in range(1, len(pattern)))


def is_distinct(pattern: list[float]) -> bool:
    """Whether what a shorter pattern would leave is clearly more than noise (``NOISE`` squared, by definition)."""
    mean = fmean(pattern)
    row = [value / mean for value in pattern * 12]
    for length in range(1, len(pattern)):
        places = [row[place::length] for place in range(length)]
        left = sum((value - fmean(place)) ** 2 for place in places for value in place) / len(row)
        if left < 4 * NOISE**2:
            return False
    return True


patterns = st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=1, max_size=6).filter(is_primitive).filter(is_distinct)


@given(patterns, st.integers(2, 6), st.floats(0.0, 0.1), st.randoms(use_true_random=False))
def test_the_pattern_is_found_under_jitter_up_to_a_tenth(
    pattern: list[float], repetitions: int, jitter: float, rng: random.Random
) -> None:
    steps = [
        [100 * factor * rng.uniform(1 - jitter, 1 + jitter), 20 * rng.uniform(1 - jitter, 1 + jitter)]
        for factor in pattern * repetitions
    ]
    assert period_in_steps(steps) == len(pattern)


@given(patterns, st.integers(0, 5), st.randoms(use_true_random=False))
def test_it_does_not_matter_where_in_the_pattern_the_log_begins_and_ends(
    pattern: list[float], extra: int, rng: random.Random
) -> None:
    steps = [[100 * factor * rng.uniform(0.95, 1.05)] for factor in pattern * 5]
    assert period_in_steps(steps[extra:]) == len(pattern)


def test_tail_batching_repeats_every_five_steps() -> None:
    steps = [[60.0, 12.0], [61.0, 12.1], [60.5, 11.9], [59.0, 12.0], [140.0, 12.0]] * 3
    assert period_in_steps(steps) == 5


def test_a_pattern_in_one_column_is_enough() -> None:
    assert period_in_steps([[100.0, 20.0], [100.0, 20.0], [100.0, 35.0]] * 2) == 3


def test_columns_with_different_periods_repeat_together() -> None:
    steps = [[100.0 * (1 + index % 2), 10.0 * (1 + (index % 3 == 0))] for index in range(24)]
    assert period_in_steps(steps) == 6


def test_large_noise_is_no_pattern() -> None:
    rng = random.Random(0)
    assert period_in_steps([[rng.uniform(60, 140)] for _ in range(64)]) == 1


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_a_pattern_must_be_seen_twice(num_steps: int) -> None:
    assert period_in_steps([[1.0], [9.0], [1.0]][:num_steps]) == 1
    assert period_in_steps([[1.0], [9.0], [1.0], [9.0]]) == 2


def test_patterns_longer_than_the_limit_are_not_found() -> None:
    steps = [[1.0], [1.0], [1.0], [9.0]] * 4
    assert period_in_steps(steps) == 4
    assert period_in_steps(steps, max_steps=3) < 4


def test_a_column_of_zeros_and_rows_of_different_lengths() -> None:
    assert period_in_steps([[1.0, 0.0]] * 4) == 1
    with pytest.raises(ValueError, match="the same number of values"):
        period_in_steps([[1.0], [1.0, 2.0]])
