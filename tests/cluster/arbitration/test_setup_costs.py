"""What a switch costs, before and after transfers have been measured (Eq. 3)."""

from __future__ import annotations

import math

import pytest

from tailrace.cluster.arbitration.setup_costs import JobState, SetupCosts
from tailrace.cluster.events import Direction
from tailrace.cluster.ids import JobId
from tailrace.cluster.job_spec import StateBytes
from tailrace.cluster.settings import Transfers

A, B = JobId("a"), JobId("b")
STATE = StateBytes(weights=20, optimizer=80)


@pytest.fixture
def costs() -> SetupCosts:
    return SetupCosts(Transfers(bytes_per_s=10.0, fixed_s=2.0))


def test_an_unmeasured_transfer_takes_the_fixed_time_and_its_bytes_over_the_assumed_bandwidth(
    costs: SetupCosts,
) -> None:
    assert costs.offload_s(A, STATE) == costs.load_s(A, STATE) == 12.0


def test_the_bandwidth_is_learned_from_other_jobs_per_direction(costs: SetupCosts) -> None:
    costs.measured(B, Direction.LOAD, num_bytes=1000, seconds=52.0)
    assert costs.load_s(A, STATE) == pytest.approx(2.0 + 100 / 20)
    assert costs.offload_s(A, STATE) == 12.0


def test_a_later_bandwidth_is_averaged_by_bytes_over_seconds(costs: SetupCosts) -> None:
    costs.measured(B, Direction.LOAD, num_bytes=1000, seconds=52.0)
    costs.measured(B, Direction.LOAD, num_bytes=0, seconds=2.0)
    assert costs.load_s(A, STATE) == pytest.approx(7.0), "a transfer of nothing says nothing about bandwidth"
    costs.measured(B, Direction.LOAD, num_bytes=1000, seconds=102.0)
    assert costs.load_s(A, STATE) == pytest.approx(2.0 + 100 * (50 + 0.3 * 50) / 1000)


def test_a_jobs_own_transfers_count_more_than_its_bytes(costs: SetupCosts) -> None:
    costs.measured(A, Direction.OFFLOAD, num_bytes=100, seconds=30.0)
    assert costs.offload_s(A, STATE) == 30.0
    costs.measured(A, Direction.OFFLOAD, num_bytes=100, seconds=40.0)
    assert costs.offload_s(A, STATE) == pytest.approx(33.0)
    half = StateBytes(weights=50)
    assert costs.offload_s(A, half) == pytest.approx(33.0)
    costs.forget(A)
    assert costs.offload_s(A, half) == pytest.approx(2.0 + 31.0 / 2), "from the bandwidth again"


def test_what_a_prefetch_did_counts_as_part_of_the_load(costs: SetupCosts) -> None:
    costs.measured(A, Direction.LOAD, num_bytes=5, seconds=4.0, prefetched_s=6.0)
    assert costs.load_s(A, STATE) == 10.0
    assert costs.load_s(B, STATE) == 12.0, "its bytes tell no bandwidth"


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_impossible_times_teach_nothing(costs: SetupCosts, seconds: float) -> None:
    costs.measured(A, Direction.LOAD, num_bytes=5, seconds=seconds)
    assert costs.load_s(A, STATE) == 12.0


def test_a_prefetch_is_neither_a_load_nor_an_offload(costs: SetupCosts) -> None:
    costs.measured(A, Direction.PREFETCH, num_bytes=5, seconds=1.0)
    assert costs.load_s(A, STATE) == costs.offload_s(A, STATE) == 12.0


def test_setup_is_offload_and_load_less_what_prefetch_hid_and_never_negative(costs: SetupCosts) -> None:
    a, b = JobState(A, STATE), JobState(B, StateBytes(weights=50))
    assert costs.setup_s(None, b) == 7.0
    assert costs.setup_s(a, b) == 12.0 + 7.0
    assert costs.setup_s(a, b, 5.0) == 14.0
    assert costs.setup_s(a, b, 50.0) == 0.0
    assert costs.setup_s(a, a) == 0.0, "the resident job needs no switch"
