"""How long a request will take: the user's estimate, corrected by what was seen (X7)."""

from __future__ import annotations

import math

import pytest

from tailrace.cluster.arbitration.requests import Durations, PhaseRequest
from tailrace.cluster.ids import JobId, TenantId
from tailrace.cluster.settings import Grain


def request(*operations_s: float, job: str = "a") -> PhaseRequest:
    return PhaseRequest(job=JobId(job), tenant=TenantId("t"), asked_at=10.0, operations_s=operations_s, slack_s=4.0)


def test_a_phase_lasts_as_long_as_all_its_operations_and_an_operation_as_the_first() -> None:
    assert request(1.0, 2.0, 4.0).estimate_s(Grain.PHASE) == 7.0
    assert request(1.0, 2.0, 4.0).estimate_s(Grain.OPERATION) == 1.0
    assert request(1.0, 2.0, 4.0).num_granted(Grain.PHASE) == 3
    assert request(1.0, 2.0, 4.0).num_granted(Grain.OPERATION) == 1
    assert request(1.0, -2.0).estimate_s(Grain.PHASE) == 1.0
    assert request(1.0).latest_start == 14.0


def test_an_estimate_that_was_too_low_is_raised_to_the_median_of_what_was_seen() -> None:
    durations = Durations()
    for seconds in (20.0, 200.0, 22.0):
        durations.observe(request(10.0), seconds)
    assert durations.execution_s(request(10.0), Grain.PHASE) == 22.0, "one phase of 200 s is an accident"
    assert durations.execution_s(request(50.0), Grain.PHASE) == 50.0, "an estimate is never lowered"


def test_only_the_last_five_count() -> None:
    durations = Durations()
    for seconds in (90.0,) * 5 + (20.0,) * 3:
        durations.observe(request(10.0), seconds)
    assert durations.execution_s(request(10.0), Grain.PHASE) == 20.0


def test_operations_are_told_apart_by_how_many_are_left_and_jobs_by_name() -> None:
    durations = Durations()
    durations.observe(request(20.0, 5.0), 60.0)
    assert durations.execution_s(request(20.0, 5.0), Grain.OPERATION) == 60.0
    assert durations.execution_s(request(5.0), Grain.OPERATION) == 5.0
    assert durations.execution_s(request(20.0, 5.0, job="b"), Grain.OPERATION) == 20.0
    durations.forget(JobId("a"))
    assert durations.execution_s(request(20.0, 5.0), Grain.OPERATION) == 20.0


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_impossible_times_teach_nothing(seconds: float) -> None:
    durations = Durations()
    durations.observe(request(1.0), seconds)
    assert durations.execution_s(request(1.0), Grain.PHASE) == 1.0
