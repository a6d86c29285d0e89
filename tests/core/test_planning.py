"""When plans are made and what they leave behind, seen through strategies that were written for the test."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest
from hypothesis import given

from core.histories import I0, Case, cases, coordinated, held_to, until
from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.fleet.policy import FleetView
from tailrace.core.ids import InstanceId, Version
from tailrace.core.responses.response import Finish
from tailrace.core.schedule import Coordination, Leftovers, Schedule
from tailrace.policies.strategies import policies_of

ALL = dict.fromkeys(("routing", "synchronization", "migration"), "throughput")
PAUSE_S = 4.0


@dataclass
class GiveBack:
    """Takes ``count`` responses from the first instance when one waits inside it, once; notes who is rested."""

    is_planned: ClassVar[bool] = True

    count: int
    has_moved: bool = False
    rested: dict[InstanceId, bool] = field(default_factory=dict)

    def choose(self, view: FleetView) -> Iterable[tuple[InstanceId, int]]:
        self.rested = {instance.instance: instance.is_rested for instance in view.instances}
        crowded = [i for i in view.instances if i.instance == I0 and i.num_waiting == 1]
        if self.has_moved or not crowded:
            return []
        self.has_moved = True
        return [(I0, self.count)]


def crowded_world(migration: GiveBack) -> World:
    """Two instances with three responses each; those of the first have grown, so that one of them waits for room."""
    coordination = Coordination(
        prompt_length=2, kv_tokens=40, max_waiting=0, plan_interval_s=0.0, pause_s=PAUSE_S, **ALL
    )
    schedule = Schedule(
        train_source="train",
        batch_size=2,
        group_size=3,
        max_steps=3,
        leftovers=Leftovers.KEEP,
        num_instances=2,
        coordination=coordination,
    )
    world = World(schedule, random.Random(0), num_prompts=1000)
    world.coordinator = Coordinator(schedule, policies=replace(policies_of(schedule), migration=migration))
    world.tell(ev.RunStarted(schedule=schedule))
    while world.open:
        world.now += 1.0
        world.answer(world.take_one())
    grown = tuple(ev.Progressed(response=r, length=15) for r in world.running[I0])
    world.tell(world.signed(ev.RolloutReported(instance=I0, version=Version(0), progressed=grown)))
    return world


@pytest.mark.parametrize(
    ("count", "is_rested"),
    [pytest.param(1, True, id="only the one that waited"), pytest.param(2, False, id="one that ran")],
)
def test_an_instance_rests_when_it_gave_away_what_it_was_generating(count: int, is_rested: bool) -> None:
    """What waited inside it has cost it nothing."""
    migration = GiveBack(count)
    world = crowded_world(migration)
    [interrupt] = [command for command in world.open if isinstance(command, do.Interrupt)]
    assert len(interrupt.responses) == count
    stopped = (ev.Finished(response=r, length=15, finish=Finish.INTERRUPTED) for r in interrupt.responses)
    world.tell(world.signed(ev.RolloutReported(instance=I0, version=Version(0), finished=tuple(stopped))))
    world.tell(ev.TimerFired())
    assert migration.rested == {I0: is_rested, InstanceId(1): True}
    world.now += PAUSE_S
    world.tell(ev.TimerFired())
    assert migration.rested == {I0: True, InstanceId(1): True}


class CountsQuestions:
    """A migration that moves nothing."""

    def __init__(self, *, is_planned: bool) -> None:
        self.is_planned, self.num_asked = is_planned, 0

    def choose(self, view: FleetView) -> Iterable[tuple[InstanceId, int]]:
        self.num_asked += 1
        return []


def planned_every(interval_s: float, migration: CountsQuestions) -> World:
    """A run whose routing is planned, with its first responses on their instance."""
    coordination = Coordination(plan_interval_s=interval_s, **ALL)
    schedule = Schedule(
        train_source="train",
        batch_size=2,
        group_size=2,
        max_steps=3,
        leftovers=Leftovers.KEEP,
        max_staleness=1,
        coordination=coordination,
    )
    world = World(schedule, random.Random(0))
    world.coordinator = Coordinator(schedule, policies=replace(policies_of(schedule), migration=migration))
    world.tell(ev.RunStarted(schedule=schedule))
    until(world, lambda: bool(world.running.get(I0)))
    return world


def test_migration_is_asked_only_when_a_plan_is_due() -> None:
    migration = CountsQuestions(is_planned=True)
    world = planned_every(100.0, migration)
    planned_at = world.coordinator.rooms.fleet.planned_at
    assert planned_at is not None
    count = migration.num_asked
    world.now = planned_at + 99.0
    world.tell(ev.TimerFired())
    assert migration.num_asked == count
    world.now = planned_at + 100.0
    world.tell(ev.TimerFired())
    assert migration.num_asked == count + 1


def test_a_migration_that_is_not_planned_is_never_asked() -> None:
    migration = CountsQuestions(is_planned=False)
    world = planned_every(0.0, migration)
    until(world, lambda: world.verdict is not None)
    assert migration.num_asked == 0


def in_turn(rng: random.Random, **changes: object) -> Schedule:
    """Plans wait until no instance owes an answer."""
    schedule = coordinated(rng, num_instances=3, **changes)
    return replace(schedule, coordination=replace(schedule.coordination, is_global=True, **ALL))


@held_to(40)
@given(cases(in_turn, 0.0, 0.03))
def test_nothing_is_planned_while_an_instance_owes_an_answer_where_plans_are_global(case: Case) -> None:
    owed: dict[InstanceId, set[object]] = {}
    for entry in case.run().world.entries:
        match entry.event:
            case ev.RolloutReported(instance=instance, finished=finished):
                owed.get(instance, set()).difference_update(part.response for part in finished)
            case ev.ResponsesAborted(instance=instance, aborted=aborted):
                owed.get(instance, set()).difference_update(part.response for part in aborted)
            case ev.WeightsPulled(instance=instance):
                owed.get(instance, set()).discard("weights")
            case ev.InstanceLost(instance=instance):
                owed.pop(instance, None)
            case ev.RunResumed():
                owed = {}
        if any(owed.values()):
            planned = [c for c in entry.commands if isinstance(c, (do.Submit, do.Interrupt))]
            assert not planned, f"{planned} while {owed} is owed"
        for command in entry.commands:
            match command:
                case do.Interrupt(instance=instance, responses=responses):
                    owed.setdefault(instance, set()).update(responses)
                case do.Abort(instance=instance, responses=responses):
                    owed.setdefault(instance, set()).update(responses)
                case do.PullWeights(instance=instance):
                    owed.setdefault(instance, set()).add("weights")
