"""Property 5 of specification 4.6: the order of waiting requests."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tailrace.cluster.arbitration.ratios import WaitingPhase, execution_ratio, priority, rank, response_ratio
from tailrace.cluster.arbitration.requests import PhaseRequest
from tailrace.cluster.ids import JobId, TenantId
from tailrace.cluster.settings import Ratio

NOW = 1000.0
SECONDS = st.integers(1, 900).map(float)
HRRS = (Ratio.RESPONSE, Ratio.EXECUTION)


def candidate(job: str, waited_s: float, execution_s: float, setup_s: float = 0.0) -> WaitingPhase:
    request = PhaseRequest(job=JobId(job), tenant=TenantId("t"), asked_at=NOW - waited_s, operations_s=(execution_s,))
    return WaitingPhase(request=request, execution_s=execution_s, setup_s=setup_s, needs_switch=setup_s > 0)


def first(ratio: Ratio, *candidates: WaitingPhase) -> str:
    return min(candidates, key=lambda each: rank(each, ratio, NOW)).request.job


def test_the_ratios_are_those_of_the_specification() -> None:
    assert response_ratio(30.0, 20.0) == 2.5
    assert execution_ratio(30.0, 15.0, 20.0) == 2.25
    assert response_ratio(0.0, 0.0) == execution_ratio(0.0, 0.0, 0.0) == math.inf
    one = candidate("a", 30.0, 15.0, 5.0)
    assert [priority(one, ratio, NOW) for ratio in (Ratio.FIRST_COME, *HRRS)] == [30.0, 2.5, 2.25]


def test_the_variant_counts_a_switch_even_before_any_waiting() -> None:
    resident, other = candidate("b", 0.0, 50.0), candidate("a", 10.0, 50.0, 19.0)
    assert first(Ratio.RESPONSE, resident, other) == "a"
    assert first(Ratio.EXECUTION, resident, other) == "b"


@given(SECONDS, SECONDS, SECONDS, SECONDS, st.sampled_from(Ratio))
def test_equal_s_is_first_come_first_served(
    waited_s: float, other_s: float, execution_s: float, setup_s: float, ratio: Ratio
) -> None:
    assume(waited_s > other_s)
    pair = candidate("b", waited_s, execution_s, setup_s), candidate("a", other_s, execution_s, setup_s)
    assert first(ratio, *pair) == "b"


@given(SECONDS, SECONDS, SECONDS, st.sampled_from(HRRS))
def test_equal_w_prefers_the_smaller_s(waited_s: float, small_s: float, large_s: float, ratio: Ratio) -> None:
    assume(small_s < large_s)
    assert first(ratio, candidate("a", waited_s, large_s), candidate("b", waited_s, small_s)) == "b"


@given(SECONDS, SECONDS, SECONDS, st.sampled_from(Ratio))
def test_equal_w_and_e_prefers_the_resident_job(
    waited_s: float, execution_s: float, setup_s: float, ratio: Ratio
) -> None:
    same, other = candidate("b", waited_s, execution_s), candidate("a", waited_s, execution_s, setup_s)
    assert first(ratio, same, other) == "b"


@given(st.sampled_from(Ratio), SECONDS)
def test_at_a_tie_the_same_job_comes_first_even_if_it_is_longer(ratio: Ratio, execution_s: float) -> None:
    """Nobody has waited, so all response ratios are 1."""
    same, other = candidate("b", 0.0, 1000.0), candidate("a", 0.0, execution_s, 1e-12)
    if ratio is Ratio.EXECUTION:
        other = replace(other, setup_s=0.0)
    assert first(ratio, same, other) == "b"


def test_further_ties_go_by_s_then_by_job() -> None:
    assert first(Ratio.RESPONSE, candidate("a", 0.0, 5.0), candidate("b", 0.0, 4.0)) == "b"
    assert first(Ratio.RESPONSE, candidate("b", 0.0, 5.0), candidate("a", 0.0, 5.0)) == "a"
    free = candidate("a", 1.0, 0.0), candidate("b", 2.0, 0.0)
    assert first(Ratio.RESPONSE, *free) == "b", "both ratios are infinite: first come"


@pytest.mark.parametrize("ratio", HRRS)
def test_a_request_that_waits_long_enough_overtakes_any_newcomer(ratio: Ratio) -> None:
    long = candidate("z", 900.0, 100.0, 19.0)
    assert first(ratio, long, *(candidate(job, 1.0, 1.0) for job in "abc")) == "z"
