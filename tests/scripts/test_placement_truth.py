"""`placement_truth.py`: phases never overlap in real time, nobody who fits is refused, and the oracle can tell."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
HOUR_S = 3600.0


@pytest.fixture(scope="module")
def truth() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return __import__("placement_truth")
    finally:
        sys.path.pop(0)


@pytest.mark.parametrize("first_s", [0.0, 9 * HOUR_S])
def test_phases_of_accepted_jobs_never_overlap_and_refused_jobs_fit_nowhere(truth: ModuleType, first_s: float) -> None:
    num_refused = 0
    for family in (*truth.FAMILIES, truth.JITTERED):
        found = truth.audit(family, num_jobs=120, first_s=first_s, seed=1, num_groups=4)
        assert (found.overlapping, found.wrongly_refused) == (0, 0), family
        assert found.accepted >= 20, family
        num_refused += found.refused
    assert num_refused >= 10


def promise(truth: ModuleType, at_s: float, *, period_s: float = 100.0, lasts_s: float = 30.0) -> object:
    return truth.Promise(begins_s=0.0, period_s=period_s, phases=((at_s, lasts_s),))


def test_the_oracle_sees_phases_that_meet_only_after_hours(truth: ModuleType) -> None:
    one, drifting = promise(truth, 0.0), promise(truth, 40.0, period_s=100.01)
    first_s = 100 * 30 / 0.01  # its phases begin 30 s later after 3,000 periods, and end when another one has begun
    assert not truth.overlap(one, promise(truth, 40.0), 0.0)
    assert first_s > 48 * HOUR_S
    assert not truth.overlap(one, drifting, 0.0)
    assert truth.overlap(one, drifting, first_s)


def test_the_oracle_finds_the_one_second_in_which_a_job_fits(truth: ModuleType) -> None:
    residents = [promise(truth, 0.0), promise(truth, 30.0, lasts_s=40.0)]
    assert truth.has_room(truth.trace_of(100.0, 30.0), residents, 0.0)
    assert not truth.has_room(truth.trace_of(100.0, 31.0), residents, 0.0)
    assert not truth.has_room(truth.trace_of(math.pi * 20, 5.0), residents, 0.0), "without a common part it meets both"
