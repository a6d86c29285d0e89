"""Which steps a new training process takes again."""

from __future__ import annotations

import random

from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import Version
from tailrace.core.schedule import Schedule
from tailrace.runtime.taken_steps import TakenSteps

SCHEDULE = Schedule(train_source="train", batch_size=2, group_size=2, max_steps=5, save_interval=2)


def told(world: World) -> TakenSteps:
    steps = TakenSteps(None)
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
