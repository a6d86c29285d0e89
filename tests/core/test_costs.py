"""The cost model, on numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.histories import held_to
from policies.fleets import begun, instance, view
from tailrace.core.costs import CostModel, PrefillChunk
from tailrace.policies.routing.waterfall import Waterfall

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
    with pytest.raises(ValueError, match="got CostModel"):
        CostModel(**({"k1": 0.0, "k2": 1.0, "k3": 1.0, "k4": 1.0} | wrong))


def test_what_is_prefilled_together_is_padded_to_the_longest_of_it() -> None:
    chunk = PrefillChunk(12)
    assert chunk.take(3)
    assert chunk.take(4)
    assert chunk.num_tokens == 2 * 4
    assert not chunk.take(5), "three of five are more than twelve"
    assert chunk.take(0), "nothing takes no room"
    assert chunk.take(4)
    assert chunk.num_tokens == 12
    assert PrefillChunk(12).take(99), "the first is prefilled however long it is"


def test_without_a_limit_all_of_it_is_prefilled_together_and_nothing_is_padded() -> None:
    chunk = PrefillChunk(None)
    assert all(chunk.take(tokens) for tokens in (3, 99, 1))
    assert chunk.num_tokens == 103


COSTS = st.builds(
    CostModel,
    k1=st.sampled_from([0.0, 1e-6, 0.01]),
    k2=st.sampled_from([0.1, 0.5]),
    k3=st.sampled_from([0.0, 0.001, 0.25]),
    k4=st.sampled_from([0.0, 0.1]),
    k5=st.sampled_from([1.0, 1.5]),
)


@held_to(200)
@given(COSTS, st.integers(1, 500), st.integers(0, 40), st.integers(0, 5000), st.integers(0, 2), st.integers(0, 5000))
def test_staleness_property_12_a_gain_is_nothing_where_it_queues_and_the_ideal_where_nothing_runs(
    costs: CostModel, length: int, num_running: int, kv_tokens: int, num_waiting: int, kv_budget: int
) -> None:
    ideal = costs.ideal_gain(length=length)
    assert costs.gain(length=length, kv_tokens=0, num_running=0) == ideal
    load = {"kv_tokens": kv_tokens, "num_running": num_running}
    gain = costs.gain(length=length, **load, num_waiting=num_waiting, kv_budget=kv_budget)
    if num_waiting or kv_tokens + costs.k5 * length > kv_budget:
        assert gain == 0
    else:
        assert gain <= ideal * (1 + 1e-9)


@held_to(200)
@given(COSTS, st.integers(1, 500), st.integers(0, 12), st.integers(0, 3000), st.integers(100, 4000))
def test_staleness_property_12_a_router_gives_nothing_to_where_it_would_queue(
    costs: CostModel, length: int, num_running: int, kv_tokens: int, kv_budget: int
) -> None:
    """And an idle instance gets whatever waits: its engine can hold any one response."""
    router = Waterfall(kv_budget=kv_budget, min_gain=1e-9, prompt_length=10)
    busy = instance(0, responses=num_running, kv=float(kv_tokens if num_running else 0))
    routes = list(router.route(view([busy], [begun(0, version=0, length=length)], costs=costs)))
    if num_running and busy.kv_tokens + costs.k5 * length > kv_budget:
        assert routes == []
    elif not num_running:
        assert [route.instances for route in routes] == [[0]]
    waiting = replace(busy, num_responses=num_running + 1, num_waiting=1)
    assert list(router.route(view([waiting], [begun(0, version=0, length=length)], costs=costs))) == []
