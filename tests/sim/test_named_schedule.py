"""Every schedule in virtual time: what must hold whatever the lengths, the placement and the faults."""

from __future__ import annotations

from itertools import product

import pytest

from sim.worlds import small_scenario
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.journal import Entry, replay_all
from tailrace.core.responses.response import Finish
from tailrace.observe.schedules.schedule_account import ScheduleAccount
from tailrace.policies.strategies import KINDS, policies_of
from tailrace.sim.named_schedule import schedule_of
from tailrace.sim.result import SimResult, simulate
from tailrace.sim.scenario import Scenario

VARIANTS = {
    "one-step-tail-batching": {"preset": "tail-batching", "max_staleness": 1, "rounds_ahead": 1},
    "bounded-partial": {"preset": "active-partial", "max_staleness": 1},
    "keep-deferred": {"preset": "tail-batching", "max_staleness": 2, "keep_deferred_tokens": True},
    "drop": {"preset": "tail-batching", "leftovers": "drop"},
    "staleflow-vanilla": {"preset": "staleflow", **dict.fromkeys(KINDS, "vanilla")},
    "staleflow-2": {"preset": "staleflow", "max_staleness": 2},
    "staleflow-relieved": {"preset": "staleflow", "max_stuck_s": 1.0},
    "async-order": {"preset": "async-cap", "max_staleness": 2, "bound": "order"},
}
ALTERNATING = ("sync", "tail-batching", "rollpacker", "active-partial", "bounded-partial", "keep-deferred", "drop")
OVERLAPPING = (
    "one-step",
    "async-cap",
    "async-order",
    "one-step-tail-batching",
    "staleflow",
    "staleflow-2",
    "staleflow-vanilla",
    "staleflow-relieved",
)
FAULTS = [
    {"kind": "lost", "instance": 1, "at": 1.5, "down_s": 20.0},
    {"kind": "slow", "instance": 0, "at": 0.5, "until": 9.0, "factor": 3.0},
    {"kind": "message", "instance": 0, "at": 3.0, "repeat_s": 2.0},
    {"kind": "lost", "instance": 0, "at": 31.5},
]


def scenario(placement: str, **changes: object) -> Scenario:
    return small_scenario(
        schedule__num_steps=8,
        schedule__variants=VARIANTS,
        engine__placement=placement,
        engine__release_s=0.1,
        **changes,
    )


def run(chosen: Scenario, name: str) -> tuple[SimResult, list[Entry], ScheduleAccount]:
    entries: list[Entry] = []
    result = simulate(chosen, name, record=entries.append)
    account = ScheduleAccount()
    for entry in entries:
        account.feed(entry)
    return result, entries, account


CASES = [*product(ALTERNATING, ("colocated",)), *product(OVERLAPPING, ("disaggregated", "shared"))]


@pytest.mark.parametrize("dynamic_sampling", [False, True])
@pytest.mark.parametrize("faults", [[], FAULTS], ids=["healthy", "faulty"])
@pytest.mark.parametrize(("name", "placement"), CASES)
def test_a_schedule_comes_to_its_end(name: str, placement: str, faults: list, dynamic_sampling: bool) -> None:
    chosen = scenario(placement, faults=faults, schedule__dynamic_sampling=dynamic_sampling)
    result, entries, account = run(chosen, name)
    assert result.is_complete, result.reason
    figures, schedule = result.figures, schedule_of(chosen, name)
    assert figures.num_steps == 8
    assert figures.tokens_generated == figures.tokens_trained + figures.tokens_wasted + account.tokens_held
    if schedule.is_strict:
        assert figures.staleness_violations == 0
    assert replay_all(entries, lambda made: Coordinator(made, policies=policies_of(made))) == len(entries)


def test_a_response_has_the_same_length_under_every_schedule() -> None:
    seen: dict[object, int] = {}
    for name in ALTERNATING:
        for entry in run(scenario("colocated"), name)[1]:
            finished = entry.event.finished if isinstance(entry.event, ev.RolloutReported) else ()
            for end in finished:
                if end.finish is not Finish.INTERRUPTED:
                    assert seen.setdefault(end.response, end.length) == end.length
    assert len(seen) > 8 * 6 * 4


def test_tail_batching_has_four_short_rounds_to_one_long() -> None:
    chosen = scenario("colocated", schedule__rollout_batch_size=8)
    result, entries, _ = run(chosen.with_steps(10), "tail-batching")
    kinds = [c.is_long for entry in entries for c in entry.commands if isinstance(c, do.CloseRound)]
    assert kinds == ([False] * 4 + [True]) * 2
    assert (result.figures.rounds_short, result.figures.rounds_long) == (8, 2)


def test_partial_rollouts_waste_nothing_and_carry_tokens() -> None:
    figures = run(scenario("colocated"), "active-partial")[0].figures
    assert figures.tokens_wasted == 0
    assert figures.carried_share > 0
    assert figures.versions_max > 1


def test_instances_release_their_memory_before_colocated_training() -> None:
    _, entries, _ = run(scenario("colocated"), "sync")
    released: set[int] = set()
    for entry in entries:
        match entry.event:
            case ev.MemoryReleased(instance=instance):
                released.add(instance)
            case ev.WeightsPulled(instance=instance):
                released.discard(instance)
        if any(isinstance(command, do.Accumulate) for command in entry.commands):
            assert released == {0, 1}
