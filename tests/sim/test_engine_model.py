from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.naive_engine import NaiveEngine, Row
from tailrace.sim.engine_costs import EngineCosts
from tailrace.sim.engine_model import EngineModel, SimRequest

COSTS = EngineCosts(k1=2**-10, k2=2**-4, k3=2**-6, k4=2**-5, prefill_s=2**-8, kv_capacity=10_000, max_running=8)
"""Powers of two, and times that are multiples of them: no sum is rounded, so equal means equal."""

WHEN = st.integers(0, 2**14).map(lambda tick: tick / 2**6)
ACTIONS = st.lists(
    st.tuples(
        WHEN,
        st.one_of(
            st.tuples(st.just("submit"), st.integers(0, 12), st.integers(0, 5), st.integers(1, 40)),
            st.tuples(st.just("remove"), st.sets(st.integers(0, 11), min_size=1, max_size=4)),
            st.tuples(st.just("slow"), st.sampled_from([1.0, 2.0, 4.0])),
        ),
    ),
    min_size=1,
    max_size=12,
).map(lambda actions: sorted(actions, key=lambda action: action[0]))


def drain(engine: EngineModel[int]) -> list[tuple[float, int, int]]:
    found = []
    while (time := engine.next_time()) is not None:
        found += [(end.at, end.id, end.length) for end in engine.ended(time)]
    return found


@settings(max_examples=200, deadline=None)
@given(
    ACTIONS,
    st.integers(60, 200),
    st.integers(1, 8),
    st.sampled_from([None, 2**-3]),
    st.sampled_from([None, 4, 12, 30]),
    st.sampled_from([(), (), (8, 16, 32, 60), (25,)]),
)
def test_the_closed_form_equals_a_loop_over_steps(
    actions: list, capacity: int, max_running: int, prompt_s: float | None, chunk: int | None, classes: tuple[int, ...]
) -> None:
    costs = replace(COSTS, kv_capacity=capacity, max_running=max_running, prompt_s=prompt_s, prefill_chunk=chunk)
    costs = replace(costs, prefill_batch_s=2**-7, class_s=2**-6, length_classes=classes)
    engine: EngineModel[int] = EngineModel(costs)
    naive = NaiveEngine(costs)
    ended: list[tuple[float, int, int]] = []
    number = 0
    for when, action in actions:
        ended += [(end.at, end.id, end.length) for end in engine.ended(when)]
        match action:
            case ("submit", prompt, start, more):
                engine.submit([SimRequest(number, prompt, start, start + more, group=number // 3)], when)
                naive.submit(Row(number, prompt, start, start + more, group=number // 3), when)
                number += 1
            case ("remove", ids):
                assert engine.remove(sorted(ids), when) == naive.remove(ids, when)
            case ("slow", factor):
                engine.slow_down(factor, when)
                naive.reach(when)
                naive.slowdown = factor
    ended += drain(engine)
    while naive.running:
        naive.step()
    assert sorted(ended) == sorted(naive.ended)
    assert engine.num_preemptions == naive.num_preemptions
    assert engine.num_requests == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), WHEN)
def test_lengths_are_those_of_the_steps_that_ended(targets: list[int], when: float) -> None:
    engine: EngineModel[int] = EngineModel(COSTS)
    naive = NaiveEngine(COSTS)
    engine.submit([SimRequest(i, 3, 0, target) for i, target in enumerate(targets)], 0.0)
    naive.waiting = [Row(i, 3, 0, target) for i, target in enumerate(targets)]
    naive.admit()
    expected = {row.id: row.length for row in naive.running}
    while naive.running:
        naive.step()
        if naive.time <= when:
            expected = {row.id: row.length for row in naive.running}
    assert engine.lengths(when) == expected


def test_a_time_before_the_last_change_is_answered_to_within_two_tokens() -> None:
    engine: EngineModel[str] = EngineModel(COSTS)
    engine.submit([SimRequest("short", 0, 0, 20), SimRequest("long", 0, 0, 200)], 0.0)
    earlier = engine.lengths(2.0)["long"]
    while not (ended := engine.ended(engine.next_time() or 0.0)):
        pass
    assert ended[0].at > 2.0
    assert engine.lengths(2.0)["long"] == pytest.approx(earlier, abs=2)


def test_the_youngest_is_preempted_and_computed_again() -> None:
    engine: EngineModel[str] = EngineModel(replace(COSTS, kv_capacity=30))
    engine.submit([SimRequest("old", 5, 0, 20), SimRequest("young", 5, 0, 20)], 0.0)
    ends = drain_by_id(engine)
    assert engine.num_preemptions == 1
    assert ends["old"] < ends["young"]
    alone: EngineModel[str] = EngineModel(replace(COSTS, kv_capacity=60))
    alone.submit([SimRequest("old", 5, 0, 20), SimRequest("young", 5, 0, 20)], 0.0)
    assert drain_by_id(alone)["young"] < ends["young"]


def drain_by_id(engine: EngineModel[str]) -> dict[str, float]:
    found = {}
    while (time := engine.next_time()) is not None:
        found |= {end.id: end.at for end in engine.ended(time)}
    return found


def test_members_that_join_while_one_runs_share_its_prompt() -> None:
    costs = replace(COSTS, k1=0.0, k2=1.0, k3=0.0, k4=0.0, prompt_s=8.0)
    engine: EngineModel[str] = EngineModel(costs)
    engine.submit([SimRequest("a1", 5, 0, 2, group="a"), SimRequest("a2", 5, 0, 4, group="a")], 0.0)
    engine.submit([SimRequest("a3", 5, 0, 9, group="a"), SimRequest("b", 5, 0, 9, group="b")], 9.0)
    assert drain_by_id(engine) == {"a1": 18.0, "a2": 20.0, "a3": 26.0, "b": 26.0}
    engine.submit([SimRequest("a4", 5, 0, 1, group="a")], 100.0)
    assert drain_by_id(engine) == {"a4": 109.0}, "nobody held the prompt any more"


def test_a_response_that_can_never_fit_is_refused() -> None:
    engine: EngineModel[str] = EngineModel(replace(COSTS, kv_capacity=30))
    with pytest.raises(ValueError, match="never fit"):
        engine.submit([SimRequest("big", 10, 0, 25)], 0.0)


def test_a_removed_response_ends_with_the_step_that_was_running() -> None:
    engine: EngineModel[str] = EngineModel(replace(COSTS, k1=0.0, k2=1.0, k3=0.0, k4=0.0, prefill_s=0.0))
    engine.submit([SimRequest("one", 5, 7, 100)], 0.0)
    assert engine.remove(["one"], 2.5) == (3.0, {"one": 10})
    assert engine.next_time() is None


def test_more_requests_than_may_run_wait_in_order() -> None:
    engine: EngineModel[int] = EngineModel(replace(COSTS, max_running=2))
    engine.submit([SimRequest(i, 1, 0, 10) for i in range(5)], 0.0)
    ends = [(at, each) for at, each, _ in drain(engine)]
    assert [each for _, each in ends] == [0, 1, 2, 3, 4]
    assert ends[1][0] < ends[2][0] < ends[4][0]


def test_what_does_not_fit_into_a_chunk_is_prefilled_a_step_later_and_padding_costs_what_tokens_do() -> None:
    costs = replace(COSTS, k1=0.0, k2=1.0, k3=0.0, k4=0.0, prefill_s=0.5, prefill_batch_s=2.0)
    costs = replace(costs, prompt_s=0.0, prefill_chunk=20)
    engine: EngineModel[str] = EngineModel(costs)
    engine.submit([SimRequest(each, 5, length, length + 3, group=each) for each, length in (("a", 8), ("b", 4))], 0.0)
    engine.submit([SimRequest(each, 5, length, length + 3, group=each) for each, length in (("c", 4), ("d", 0))], 0.0)
    first, second = 2.0 + 2 * 8 * 0.5, 2.0 + 4 * 0.5
    assert drain_by_id(engine) == {"a": first + second + 3, "b": first + second + 3, "c": first + second + 4} | {
        "d": first + second + 4
    }, "who came behind one that did not fit waits with it"


@pytest.mark.parametrize(("classes", "ends"), [((), {"a": 5.0, "b": 6.0}), ((64,), {"a": 6.0, "b": 7.0})])
def test_in_rows_who_waits_for_the_prefill_is_computed_for_nothing(classes: tuple, ends: dict[str, float]) -> None:
    costs = replace(COSTS, k1=0.0, k2=0.0, k3=1.0, k4=0.0, prefill_s=0.0, prompt_s=0.0, prefill_chunk=20)
    costs = replace(costs, length_classes=classes)
    engine: EngineModel[str] = EngineModel(costs)
    engine.submit([SimRequest(each, 5, 15, 18, group=each) for each in "ab"], 0.0)
    assert drain_by_id(engine) == ends
    naive = NaiveEngine(costs, waiting=[Row(number, 5, 15, 18, group=number) for number in range(2)])
    naive.admit()
    while naive.running:
        naive.step()
    assert [at for at, _, _ in naive.ended] == list(ends.values())


@pytest.mark.parametrize("prompt_s", [None, 2**-3])
def test_costs_times_two_take_twice_as_long_for_everything(prompt_s: float | None) -> None:
    classes = {"prefill_chunk": 64, "length_classes": (32, 64, 128), "class_s": 2**-7, "prefill_batch_s": 2**-6}
    costs = replace(COSTS, prompt_s=prompt_s, **classes)
    ends = []
    for chosen in (costs, costs.times(2.0)):
        engine = EngineModel[int](chosen)
        engine.submit([SimRequest(n, prompt=4, length=10 * n, target=10 * n + 30, group=n // 2) for n in range(6)], 0.0)
        ends.append(drain(engine))
    assert ends[1] == [(2 * at, name, length) for at, name, length in ends[0]]
