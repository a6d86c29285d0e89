"""Parallel sizes in virtual time: the costs of each size, and runs that change it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from sim.worlds import I0, Stage, response, small_scenario, submit
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.ids import InstanceId, Version
from tailrace.core.journal import Entry, decode, encode, replay_all
from tailrace.policies.strategies import policies_of
from tailrace.sim.lengths import Ramp, RampedLengths
from tailrace.sim.named_schedule import schedule_of
from tailrace.sim.result import SimResult, simulate
from tailrace.sim.scenario import Scenario, ScenarioError

SIZES: dict[str, Any] = {
    "source": "a test", "sizes": [1, 2, 4], "weights_tokens": 400, "reduce_s": 1e-3, "reduce_row_s": 1e-4,
    "reduce_token_s": 1e-5, "start_s": [20.0, 30.0, 40.0],
}  # fmt: skip
PLANNED = {"preset": "tail-batching", "parallelism": "preemptions", "parallel_horizon": "any"}
FIXED = {"preset": "tail-batching"}


def sized(parallel: dict[str, Any] | None = None, **changes: Any) -> Scenario:
    """Four devices with sizes 1, 2 and 4, and tail batching with and without a planner."""
    given: dict[str, Any] = {
        "engine__num_instances": 4,
        "engine__parallel": {**SIZES, **(parallel or {})},
        "engine__kv_capacity": 600,
        "engine__wake_s": 0.25,
        "engine__release_s": 0.75,
        "schedule__variants": {"planner": PLANNED, "fixed": FIXED},
        "schedule__num_steps": 24,
    }
    return small_scenario(**{**given, **changes})


def journal(scenario: Scenario, name: str) -> tuple[SimResult, list[Entry]]:
    entries: list[Entry] = []
    return simulate(scenario, name, record=entries.append), entries


def sizes_of_rounds(entries: list[Entry], *, is_long: bool | None = None) -> list[int]:
    opened = [c for entry in entries for c in entry.commands if isinstance(c, do.OpenRound)]
    return [c.parallel_size for c in opened if is_long is None or c.is_long is is_long]


def preemptions(entries: list[Entry]) -> int:
    last: dict[tuple[int, int], int] = {}
    starts: dict[int, int] = {}
    for entry in entries:
        if isinstance(entry.event, ev.RolloutReported):
            number = entry.event.instance
            last[number, starts[number]] = entry.event.num_preemptions
        for command in entry.commands:
            if isinstance(command, do.StartInstance):
                starts[command.instance] = command.incarnation
    return sum(last.values())


# Costs


def test_work_is_divided_over_the_devices_and_communication_is_added() -> None:
    one, two, four = (sized().costs_of_sizes()[size].engine for size in (1, 2, 4))
    for name in ("k1", "k2", "k3"):
        assert getattr(one, name) == 2 * getattr(two, name) == 4 * getattr(four, name)
    assert (two.k4, four.k4) == (pytest.approx(one.k4 + 1e-3), two.k4)
    assert (one.row_s, two.row_s, four.row_s) == pytest.approx((0.0, 1e-4, 1.5e-4))
    assert (two.prefill_s, four.prefill_s) == pytest.approx((5e-5 + 1e-5, 2.5e-5 + 1.5e-5))


def test_the_weights_are_held_once_by_each_instance_and_the_rest_is_kv_cache() -> None:
    costs = sized().costs_of_sizes()
    assert [costs[size].engine.kv_capacity for size in (1, 2, 4)] == [600, 2 * 1000 - 400, 4 * 1000 - 400]
    kept = sized({"parked_tokens": 10}).costs_of_sizes()
    assert [kept[size].engine.kv_capacity for size in (1, 2, 4)] == [600 - 20, 1600 - 40, 3600 - 80]
    assert sized({"parked_tokens": 10, "parks": False}).costs_of_sizes() == costs


@pytest.mark.parametrize("size", [1, 2, 4])
def test_sizes_that_start_from_another_one_have_the_same_costs(size: int) -> None:
    """``at_size`` leads from any size to any other, as long as nothing is below 0."""
    plain = sized()
    known = plain.engine.parallel
    moved = plain.at_size(2)
    again = moved.model_copy(update={"engine": moved.engine.model_copy(update={"parallel": known})})
    there, direct = again.at_size(size).engine, plain.at_size(size).engine
    assert (there.num_instances, there.devices_per_instance) == (4 // size, size)
    assert there.kv_capacity == direct.kv_capacity
    for name in ("k1", "k2", "k3", "k4", "row_s", "prefill_s", "start_s"):
        assert getattr(there, name) == pytest.approx(getattr(direct, name)), name


def test_each_layout_of_the_schedule_has_the_costs_of_its_instances() -> None:
    scenario = sized()
    schedule = schedule_of(scenario, "planner")
    known = schedule.parallelism
    assert [(layout.size, layout.first, layout.count) for layout in known.layouts] == [(1, 0, 4), (2, 4, 2), (4, 6, 1)]
    for layout in known.layouts:
        costs = scenario.costs_of_sizes()[layout.size].engine
        assert (layout.kv_tokens, layout.costs.k1, layout.costs.k4) == (costs.kv_capacity, costs.k1, costs.k4)
        assert layout.costs.k3 == costs.k3 + costs.row_s
    assert (known.initial, known.parks, known.start_s, known.wake_s) == (1, True, 40.0, 0.75)
    assert schedule_of(scenario, "fixed").parallelism.layouts == ()


def test_what_can_be_lent_follows_the_layout() -> None:
    layouts = schedule_of(sized(trainer__num_replicas=2, trainer__devices=4), "planner").parallelism.layouts
    assert [[place.instances for place in layout.places] for layout in layouts] == [
        [(0, 1), (2, 3)],
        [(4,), (5,)],
        [(6,)],
    ]


def test_a_judge_on_the_same_devices_takes_its_memory_of_every_size() -> None:
    judge = {
        "source": "a test", "placement": "shared", "workers": 4, "devices": 1, "pass_s": 0.1, "kv_tokens": 50,
    }  # fmt: skip
    costs = sized(reward={"source": "a test", "num_workers": 1, "judge": judge}).costs_of_sizes()
    assert [costs[size].engine.kv_capacity for size in (1, 2, 4)] == [550, 1500, 3400]


@pytest.mark.parametrize(
    ("parallel", "changes", "sentence"),
    [
        ({"sizes": [2, 4], "start_s": [1, 1]}, {}, "engine.parallel.sizes: engine.devices_per_instance, 1, is not in"),
        ({"sizes": [1, 8], "start_s": [1, 1]}, {}, "engine.parallel.sizes: 8 is more than the 4 devices"),
        ({"sizes": [2, 1]}, {}, "sizes must be ascending, each once, got [2, 1]"),
        ({"start_s": [1.0]}, {}, "start_s has 1 values, but there are 3 sizes"),
        ({"parked_tokens": 90}, {}, "with size 1 the KV cache has 420 tokens, but a response with its prompt may have"),
        ({"reduce_ms": 1}, {}, "unknown key engine.parallel.reduce_ms; did you mean engine.parallel.reduce_s?"),
        (
            {},
            {
                "engine__placement": "disaggregated",
                "schedule__variants": {"planner": {**PLANNED, "preset": "staleflow"}},
            },
            "'keep' has no rounds",
        ),
    ],
)
def test_sizes_that_cannot_work_are_refused(parallel: dict[str, Any], changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        schedule_of(sized(parallel, **changes), "planner")
    assert sentence in str(caught.value)


def test_a_planner_needs_sizes_to_choose_from() -> None:
    scenario = small_scenario(schedule__variants={"planner": PLANNED})
    with pytest.raises(ScenarioError, match="give at least two parallel sizes"):
        schedule_of(scenario, "planner")


# The world


def test_an_instance_starts_and_steps_at_the_pace_of_its_size() -> None:
    scenario = sized()
    stage = Stage(6, sizes=scenario.costs_of_sizes())
    stage.do(do.StartInstance(instance=I0, size=4)).pass_time(50.0)
    assert stage.events(ev.InstanceStarted)[0][0] == 40.0
    stage.do(submit(0)).pass_time()
    costs = scenario.costs_of_sizes()[4].engine
    steps_s = sum(costs.step(10 + done, 1) for done in range(6))
    assert stage.heard[-1][0] == pytest.approx(50.0 + 10 * costs.prefill_s + steps_s)


def test_an_instance_that_ends_says_so_and_can_start_again() -> None:
    stage = Stage(5, start_s=2.0, release_s=3.0).do(do.StartInstance(instance=I0)).pass_time(2.0)
    stage.do(do.StopInstance(instance=I0)).pass_time(10.0)
    assert stage.heard[-1] == (5.0, ev.InstanceStopped(instance=I0))
    stage.do(do.StartInstance(instance=I0), do.KillInstance(instance=I0, reason="a test")).pass_time()
    assert [type(event) for _, event in stage.heard[-1:]] == [ev.InstanceLost]


def test_a_pull_takes_longer_if_the_memory_was_released() -> None:
    stage = Stage(5, pull_s=2.0, wake_s=3.0, release_s=1.0).do(do.StartInstance(instance=I0)).pass_time(0.0)
    pull = do.PullWeights(instance=I0, version=Version(1))
    stage.do(pull).pass_time(2.0).do(do.ReleaseMemory(instance=I0)).pass_time(3.0).do(pull).pass_time(10.0).do(pull)
    stage.pass_time()
    assert [(at, event.seconds) for at, event in stage.events(ev.WeightsPulled)] == [
        (2.0, 2.0),
        (8.0, 5.0),
        (12.0, 2.0),
    ]


def test_the_share_of_rollout_counts_devices_of_the_layout_in_use() -> None:
    scenario = sized()
    stage = Stage(50, schedule=schedule_of(scenario, "planner"), sizes=scenario.costs_of_sizes())
    large, small = InstanceId(6), InstanceId(4)
    stage.do(do.StartInstance(instance=large, size=4), do.StartInstance(instance=small, size=2)).pass_time(50.0)
    shares = []
    for number in (small, large):
        dispatches = (do.Dispatch(response=response(number), start=0),)
        stage.do(do.Submit(instance=number, dispatches=dispatches))
        shares.append(stage.world.rollout_share())
    assert shares == [0.5, 1.5], "both at once never happens in a run"


# Whole runs


@pytest.mark.parametrize("parks", [True, False])
@pytest.mark.parametrize("placement", ["colocated", "shared", "disaggregated"])
def test_a_run_that_changes_its_size_reaches_its_end_and_replays(parks: bool, placement: str) -> None:
    result, entries = journal(sized({"parks": parks}, engine__placement=placement), "planner")
    assert result.is_complete, result.reason
    assert {1, 2} <= set(sizes_of_rounds(entries)), "the size has changed"
    commands = {type(command) for entry in entries for command in entry.commands}
    assert (do.StopInstance in commands) is not parks
    read_back = [decode(encode(entry)) for entry in entries]
    assert replay_all(read_back, lambda schedule: Coordinator(schedule, policies=policies_of(schedule))) == len(entries)


def test_instances_of_two_sizes_never_generate_at_the_same_time() -> None:
    _, entries = journal(sized(), "planner")
    known = schedule_of(sized(), "planner").parallelism
    size = known.initial
    for entry in entries:
        for command in entry.commands:
            if isinstance(command, do.OpenRound):
                size = command.parallel_size
            if isinstance(command, do.Submit):
                layout = known.layout_of(command.instance)
                assert layout is not None
                assert layout.size == size


def test_a_larger_size_preempts_less() -> None:
    counts = [preemptions(journal(sized().at_size(size), "fixed")[1]) for size in (1, 2, 4)]
    assert counts[0] > counts[1] >= counts[2]


def test_the_planner_preempts_less_than_the_size_it_starts_from() -> None:
    assert preemptions(journal(sized(), "planner")[1]) < preemptions(journal(sized(), "fixed")[1])


def test_a_price_that_cannot_be_paid_keeps_the_size() -> None:
    dear = sized({"start_s": [500.0] * 3}, schedule__variants={"planner": {**PLANNED, "parallel_horizon": 50}})
    result, entries = journal(dear, "planner")
    assert result.is_complete
    assert set(sizes_of_rounds(entries)) == {1}


def test_quiet_rounds_lead_down_to_the_smallest_size_and_no_further() -> None:
    roomy = sized(engine__kv_capacity=50_000).at_size(4)
    engine = roomy.engine.model_copy(update={"parallel": sized().engine.parallel})
    _, entries = journal(roomy.model_copy(update={"engine": engine}), "planner")
    for is_long in (False, True):
        found = sizes_of_rounds(entries, is_long=is_long)
        assert found[0] == 4
        assert all(after in (before, before // 2) for before, after in pairwise(found))
    assert preemptions(entries) == 0
    assert sizes_of_rounds(entries, is_long=False)[-1] == 1


def test_equal_rounds_that_preempt_keep_their_size() -> None:
    """All responses have the same length, so every round has the same preemptions."""
    equal = sized(
        lengths={"source": "a test", "max_response_length": 500, "kind": "constant", "median": 200},
        schedule__variants={"planner": {**PLANNED, "preset": "sync"}},
    )
    result, entries = journal(equal, "planner")
    assert result.is_complete
    assert preemptions(entries) > 0
    assert set(sizes_of_rounds(entries)) == {1}


# Lengths that grow


def test_lengths_and_their_budget_grow_with_the_version() -> None:
    ramp = {"source": "a test", "first": 100, "per_step": 50}
    scenario = small_scenario(lengths__ramp=ramp, schedule__num_steps=12)
    known = Ramp(first=100, per_step=50, most=500)
    assert scenario.ramp == known
    assert [known.budget(version) for version in (0, 1, 8, 20)] == [100, 150, 500, 500]
    full, grown = small_scenario().make_lengths(), scenario.make_lengths()
    assert isinstance(grown, RampedLengths)
    assert grown.draw(response(3), 0) == round(full.draw(response(3), 0) / 5)
    assert grown.draw(response(3), 9) == full.draw(response(3), 9)
    _, entries = journal(scenario, "sync")
    for entry in entries:
        if isinstance(entry.event, ev.RolloutReported):
            assert all(part.length <= known.budget(entry.event.version) for part in entry.event.finished)


def test_a_scenario_without_sizes_has_one() -> None:
    schedule = schedule_of(small_scenario(), "tail-batching")
    assert schedule.parallelism.layouts == ()
    with pytest.raises(ScenarioError, match="2 is not one of them"):
        small_scenario().at_size(2)
