"""Which steps a new training process takes again."""

from __future__ import annotations

import random

from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import Version
from tailrace.core.schedule import Schedule
from tailrace.runtime.record.taken_steps import TakenSteps

SCHEDULE = Schedule(train_source="train", batch_size=2, group_size=2, max_steps=5, save_interval=2)


def told(world: World) -> TakenSteps:
    steps = TakenSteps()
    for entry in world.entries:
        steps.feed(entry)
    return steps


def until(world: World, version: int, kind: type[do.Command]) -> None:
    """Until the run is at this version and something of this kind is asked for."""
    while not (world.coordinator.version == version and any(isinstance(c, kind) for c in world.open)):
        world.advance()


def begun() -> World:
    world = World(SCHEDULE, random.Random(3))
    world.tell(ev.RunStarted(schedule=SCHEDULE))
    return world


def versions(steps: TakenSteps, since: int) -> list[int]:
    return [batch.version for step in steps.since(Version(since)) for batch in step.batches]


def test_steps_after_the_checkpoint_are_taken_again_and_one_that_is_not_done_is_not() -> None:
    world = begun()
    until(world, 1, do.Accumulate)
    assert versions(told(world), 0) == [0]
    until(world, 3, do.Accumulate)
    steps = told(world)
    assert versions(steps, 2) == [2]
    assert versions(steps, 0) == [0, 1, 2], "the checkpoint of step 2 may have been moved away"
    steps.cover(Version(2))
    assert versions(steps, 0) == [2]


def test_a_step_that_was_asked_for_twice_is_taken_again_once() -> None:
    world = begun()
    until(world, 1, do.Accumulate)
    world.lose_trainer()
    until(world, 1, do.Accumulate)
    world.lose_trainer()
    assert versions(told(world), 0) == [0]
    until(world, 2, do.SaveCheckpoint)
    world.crash_and_resume()
    assert versions(told(world), 0) == [0, 1]


def test_a_repeated_end_of_a_step_does_not_end_the_next_one() -> None:
    world = begun()
    until(world, 1, do.Accumulate)
    [done] = [entry.event for entry in world.entries if isinstance(entry.event, ev.StepTrained)]
    world.tell(done)
    until(world, 2, do.Accumulate)
    assert versions(told(world), 0) == [0, 1]


def test_a_repeated_loss_does_not_forget_what_the_next_trainer_was_asked_for() -> None:
    world = begun()
    until(world, 1, do.Accumulate)
    world.lose_trainer()
    lost = world.entries[-1].event
    until(world, 1, do.FinishStep)
    world.tell(lost)
    until(world, 2, do.Accumulate)
    assert versions(told(world), 0) == [0, 1]


def test_the_end_of_a_step_that_the_lost_trainer_took_does_not_count() -> None:
    world = begun()
    until(world, 0, do.FinishStep)
    world.lose_trainer()
    until(world, 0, do.FinishStep)
    world.tell(ev.StepTrained(version=Version(1), seconds=0.1, metrics=(), incarnation=1))
    assert world.coordinator.version == 0
    assert versions(told(world), 0) == []
