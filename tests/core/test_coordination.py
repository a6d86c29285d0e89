"""Work and versions that move between instances: that they do, the pace of plans, and what a plan sees.

What must hold whatever the strategies choose: ``test_staleness``.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given

from core.histories import Case, cases, coordinated, held_to
from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.costs import NOTHING_KNOWN, CostModel
from tailrace.core.fleet.instance import InstancePhase
from tailrace.core.fleet.planning import plan
from tailrace.core.fleet.views import fleet_view
from tailrace.core.ids import InstanceId, ResponseId, Version
from tailrace.core.journal import decode, encode, replay_all
from tailrace.core.responses.response import Finish
from tailrace.core.rooms import Rooms
from tailrace.core.schedule import Coordination, Leftovers, Schedule
from tailrace.policies.strategies import policies_of

ALL = dict.fromkeys(("routing", "synchronization", "migration"), "throughput")


@held_to(20)
@given(cases(coordinated, 0.0, 0.05))
def test_a_journal_replays_to_identical_commands(case: Case) -> None:
    entries = case.run().world.entries
    assert replay_all(entries, lambda schedule: World(schedule, random.Random(0)).coordinator) == len(entries)


def test_the_strategies_are_used() -> None:
    """Work moves, and pulls are not made: else tests of histories show nothing."""
    num_moved = num_pulls_saved = 0
    for seed in range(100):
        drawn = coordinated(random.Random(seed))
        # Work moves most where every instance pulls at once; pulls are saved where each pulls when it is useful.
        mix = {**ALL, "synchronization": ("vanilla", "throughput")[seed % 2]}
        steered = replace(drawn, coordination=replace(drawn.coordination, **mix))
        found = Case(schedule=steered, seed=seed).run()
        places: dict[ResponseId, set[InstanceId]] = {}
        for command in found.commands:
            for dispatch in command.dispatches if isinstance(command, do.Submit) else ():
                places.setdefault(dispatch.response, set()).add(command.instance)
        num_moved += sum(len(instances) > 1 for instances in places.values())
        pulled = Counter(c.version for c in found.commands if isinstance(c, do.PullWeights))
        num_pulls_saved += sum(found.schedule.num_instances - count for count in pulled.values())
    assert num_moved > 50
    assert num_pulls_saved > 20


@held_to(10)
@given(cases(coordinated, coordination=replace(Coordination(plan_interval_s=3.0), **ALL)))
def test_plans_keep_their_distance_and_nothing_is_planned_while_nothing_happens(case: Case) -> None:
    entries = case.run().world.entries
    submits = [e.now for e in entries if any(isinstance(c, do.Submit) for c in e.commands)]
    assert all(later >= earlier + 3.0 for earlier, later in pairwise(submits))
    fired = [e for e in entries if isinstance(e.event, ev.TimerFired)]
    assert len(fired) < len(entries) / 2


def world_that_begins(batch_size: int, **numbers: object) -> World:
    """Two instances and groups of three; nothing is answered yet."""
    coordination = Coordination(prompt_length=2, **{**ALL, **numbers})
    schedule = Schedule(
        train_source="train",
        batch_size=batch_size,
        group_size=3,
        max_steps=3,
        leftovers=Leftovers.KEEP,
        num_instances=2,
        coordination=coordination,
    )
    world = World(schedule, random.Random(0), num_prompts=1000)
    world.tell(ev.RunStarted(schedule=schedule))
    return world


def quiet_world(**numbers: object) -> World:
    """Two instances that hold three responses each; nothing else happens by itself."""
    world = world_that_begins(2, kv_tokens=40, **numbers)
    while any(not isinstance(command, do.Submit) for command in world.open):
        world.now += 1.0
        world.answer(world.take_one())
    return world


def test_an_instance_does_not_idle_until_a_plan_is_due() -> None:
    """It pulls when a version is published, and has work again when it has pulled."""
    world = quiet_world()
    for _ in range(500):
        world.now += 0.002
        world.act()
    published = [e.commands for e in world.entries if isinstance(e.event, ev.WeightsPublished) and e.event.version < 3]
    assert [sum(isinstance(command, do.PullWeights) for command in commands) for commands in published] == [2, 2]
    pulled = [e for e in world.entries if isinstance(e.event, ev.WeightsPulled) and e.event.version < 3]
    assert len(pulled) == 4
    for entry in pulled:
        assert entry.event.instance in [c.instance for c in entry.commands if isinstance(c, do.Submit)]


def test_plans_wait_where_nobody_idles_for_want_of_one() -> None:
    world = quiet_world()
    rooms = world.coordinator.rooms
    while world.open:
        world.answer(world.take_one())
    planned_at, first = world.now, list(world.running[InstanceId(0)])
    assert rooms.fleet.planned_at == planned_at
    world.now += 0.05
    grown = (ev.Progressed(response=first[0], length=3),)
    world.tell(ev.RolloutReported(instance=InstanceId(0), version=Version(0), progressed=grown))
    assert rooms.fleet.planned_at == planned_at, "both have work"
    ended = tuple(ev.Finished(response=r, length=3, finish=Finish.STOP) for r in first)
    world.tell(ev.RolloutReported(instance=InstanceId(0), version=Version(0), finished=ended))
    assert rooms.fleet.instances[InstanceId(0)].is_idle
    assert (rooms.fleet.planned_at, rooms.fleet.plan_at) == (planned_at, planned_at + 0.1), (
        "there is nothing for the idle one"
    )
    world.wake()
    assert rooms.fleet.planned_at == world.now == planned_at + 0.1


def test_what_the_bound_keeps_back_hurries_no_plan() -> None:
    world = quiet_world()
    rooms = world.coordinator.rooms
    planned_at = world.now
    while not rooms.training.step.has_begun or any(isinstance(command, do.RequestPrompts) for command in world.open):
        world.now += 0.001
        if not rooms.training.step.has_begun:
            world.act()
        else:
            [command] = [each for each in world.open if isinstance(each, do.RequestPrompts)]
            world.open.remove(command)
            world.answer(command)
    assert rooms.responses.pending
    assert all(instance.is_idle for instance in rooms.fleet.instances.values())
    assert rooms.fleet.planned_at == planned_at


@pytest.mark.parametrize("versions", [(0, 1), (1, 0)])
def test_one_idle_instance_that_is_behind_is_enough_to_hurry_a_plan(versions: tuple[int, int]) -> None:
    schedule = world_that_begins(1).schedule
    rooms = Rooms(schedule, policies_of(schedule))
    rooms.training.version = rooms.training.published = Version(1)
    rooms.fleet.planned_at, rooms.fleet.num_planned = 10.0, 3
    for instance, version in zip(rooms.fleet.instances.values(), versions, strict=True):
        instance.phase, instance.version = InstancePhase.READY, Version(version)
    list(plan(rooms, 10.0))
    assert rooms.fleet.plan_at == pytest.approx(10.0 + 3 * 50e-6)
    for instance in rooms.fleet.instances.values():
        instance.version = Version(1)
    list(plan(rooms, 10.0))
    assert rooms.fleet.plan_at == pytest.approx(10.1), "nothing is to be pulled, and nothing waits"


@pytest.mark.parametrize(("num_planned", "wait_s"), [(1999, 0.1), (2001, 0.10005), (3000, 0.15)])
def test_a_plan_that_costs_much_waits_longer_than_the_calm_also_where_nobody_is_idle(
    num_planned: int, wait_s: float
) -> None:
    world = quiet_world()
    fleet = world.coordinator.rooms.fleet
    assert not any(instance.is_idle for instance in fleet.instances.values())
    fleet.needs_plan, fleet.planned_at, fleet.num_planned = True, 10.0, num_planned
    list(plan(world.coordinator.rooms, 10.0))
    assert fleet.plan_at == pytest.approx(10.0 + wait_s, abs=1e-6)


@pytest.mark.parametrize(("batch_size", "wait_s"), [(2, 0.0003), (500, 0.075), (1000, 0.15)])
def test_the_wait_grows_with_what_a_plan_costs(batch_size: int, wait_s: float) -> None:
    """The second instance is ready right after the plan that gave the first its share."""
    world = world_that_begins(batch_size)
    for kind in (do.RequestPrompts, do.StartTrainer, do.StartInstance, do.StartInstance):
        [command, *_] = [each for each in world.open if isinstance(each, kind)]
        world.open.remove(command)
        world.answer(command)
    rooms = world.coordinator.rooms
    assert [bool(running) for running in given_out(world)] == [True, False]
    assert rooms.fleet.plan_at == pytest.approx(wait_s)
    while rooms.fleet.plan_at is not None:
        world.wake()
    assert world.now == pytest.approx(wait_s)
    assert [bool(running) for running in given_out(world)] == [True, True]


def test_a_view_counts_a_command_before_it_is_answered() -> None:
    world = quiet_world()
    rooms = world.coordinator.rooms
    view = fleet_view(rooms, world.now)
    assert [i.num_responses for i in view.instances] == [3, 3]
    assert [i.kv_tokens for i in view.instances] == [6, 6], "prompts count"
    while world.open:
        world.answer(world.take_one())
    first = list(world.running[InstanceId(0)])
    grown = (ev.Progressed(response=first[0], length=30), ev.Progressed(response=first[1], length=5))
    world.tell(ev.RolloutReported(instance=InstanceId(0), version=Version(0), progressed=grown))
    loaded = fleet_view(rooms, world.now).instances[0]
    assert (loaded.kv_tokens, loaded.num_waiting) == (39, 1), "the third has to wait"
    ended = (ev.Finished(response=first[0], length=31, finish=Finish.STOP),)
    world.tell(ev.RolloutReported(instance=InstanceId(0), version=Version(0), finished=ended))
    loaded = fleet_view(rooms, world.now).instances[0]
    assert (loaded.num_responses, loaded.kv_tokens, loaded.num_waiting) == (2, 9, 0)


def crowded_world(**numbers: object) -> tuple[World, ResponseId]:
    """The responses of the first instance have grown: it was told to give this one back."""
    world = quiet_world(max_waiting=0, plan_interval_s=0.0, **numbers)
    while world.open:
        world.answer(world.take_one())
    first = list(world.running[InstanceId(0)])
    grown = tuple(ev.Progressed(response=r, length=15) for r in first)
    world.tell(ev.RolloutReported(instance=InstanceId(0), version=Version(0), progressed=grown))
    [interrupt] = [command for command in world.open if isinstance(command, do.Interrupt)]
    assert interrupt.responses == (first[2],)
    return world, first[2]


def test_an_interrupt_that_came_too_late_leaves_nothing_owed() -> None:
    """The responses that were to be moved ended by themselves: the answer says so, and the next plan goes on."""
    world, moved = crowded_world()
    ended = (ev.Finished(response=moved, length=16, finish=Finish.LENGTH),)
    world.tell(ev.RolloutReported(instance=InstanceId(0), version=Version(0), finished=ended))
    assert world.coordinator.rooms.fleet.instances[InstanceId(0)].owes_nothing


COMPUTING = CostModel(k1=0.0, k2=0.0, k3=1.0, k4=1.0)
"""A third response adds too little to two."""


def test_costs_that_were_measured_count_at_once_and_for_every_strategy() -> None:
    world = quiet_world(plan_interval_s=0.0, costs=COMPUTING)
    assert [len(running) for running in given_out(world)] == [2, 2], "two wait"
    world.tell(ev.CostsMeasured(costs=NOTHING_KNOWN, error=0.9, fitted_error=0.1))
    [first, second] = [command for command in world.entries[-1].commands if isinstance(command, do.Submit)]
    assert (len(first.dispatches), len(second.dispatches)) == (1, 1), "the two that waited"
    assert decode(encode(world.entries[-1])) == world.entries[-1]
    assert fleet_view(world.coordinator.rooms, world.now).costs == NOTHING_KNOWN


def given_out(world: World) -> list[dict[ResponseId, None]]:
    return [instance.running for instance in world.coordinator.rooms.fleet.instances.values()]


def test_how_much_a_response_takes_up_follows_what_was_measured() -> None:
    world = quiet_world()
    world.tell(ev.CostsMeasured(costs=replace(NOTHING_KNOWN, k5=2.0), error=0.9, fitted_error=0.1))
    view = fleet_view(world.coordinator.rooms, world.now)
    assert [i.kv_tokens for i in view.instances] == [12, 12]


def test_a_resumed_run_goes_on_with_the_costs_it_had_measured() -> None:
    world = quiet_world()
    world.tell(ev.CostsMeasured(costs=COMPUTING, error=0.9, fitted_error=0.1))
    snapshot = world.coordinator.snapshot()
    again = Coordinator.restore(world.schedule, snapshot, policies=policies_of(world.schedule))
    again.handle(ev.RunResumed(limits=world.schedule.limits, checkpoint=None), now=world.now)
    assert again.costs == COMPUTING != world.schedule.coordination.costs
