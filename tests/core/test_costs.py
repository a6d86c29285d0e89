"""The cost model, on numbers worked out by hand."""

from __future__ import annotations

import pytest

from tailrace.core.costs import CostModel

MODEL = CostModel(k1=0.001, k2=0.5, k3=0.25, k4=0.1)


def test_a_step_reads_the_weights_until_computing_outweighs_it() -> None:
    assert MODEL.step_s(kv_tokens=100, num_running=1) == pytest.approx(0.1 + 0.5 + 0.1)
    assert MODEL.step_s(kv_tokens=100, num_running=2) == pytest.approx(0.1 + 0.5 + 0.1)
    assert MODEL.step_s(kv_tokens=100, num_running=4) == pytest.approx(0.1 + 1.0 + 0.1)


def test_throughput_is_a_token_of_each_running_response_per_step() -> None:
    assert MODEL.throughput(kv_tokens=400, num_running=4) == pytest.approx(4 / 1.5)
    assert MODEL.throughput(kv_tokens=0, num_running=0) == 0


def test_a_gain_is_the_difference_of_throughputs() -> None:
    gain = MODEL.gain(length=100, kv_tokens=400, num_running=4)
    assert gain == pytest.approx(5 / (0.5 + 1.25 + 0.1) - 4 / 1.5)


def test_a_response_that_would_queue_gains_nothing() -> None:
    assert MODEL.gain(length=100, kv_tokens=400, num_running=4, num_waiting=1) == 0
    assert MODEL.gain(length=100, kv_tokens=400, num_running=4, kv_budget=499) == 0
    assert MODEL.gain(length=100, kv_tokens=400, num_running=4, kv_budget=500) > 0


def test_added_to_an_idle_instance_a_response_gains_the_ideal() -> None:
    assert MODEL.gain(length=300, kv_tokens=0, num_running=0) == MODEL.ideal_gain(length=300) == pytest.approx(1 / 0.9)


def test_a_block_wise_cache_is_full_earlier() -> None:
    blocks = CostModel(k1=0.001, k2=0.5, k3=0.25, k4=0.1, k5=1.5)
    assert blocks.ideal_gain(length=200) == pytest.approx(1 / (0.3 + 0.6))
    assert blocks.gain(length=200, kv_tokens=0, num_running=0, kv_budget=299) == 0


@pytest.mark.parametrize("wrong", [{"k1": -1.0}, {"k2": 0.0, "k4": 0.0}, {"k5": 0.0}])
def test_coefficients_that_no_engine_has_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="not CostModel"):
        CostModel(**({"k1": 0.0, "k2": 1.0, "k3": 1.0, "k4": 1.0} | wrong))
