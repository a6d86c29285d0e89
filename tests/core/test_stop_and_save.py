"""A run that is asked to stop and save: it ends what it has begun, saves, and ends; within a limit of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.histories import I0, until
from core.test_stopped_trainer import LIMITS, Holding, held_up, pass_time
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import Version

SAVE = ev.StopRequested(reason="it was asked to stop", saves=True)
WITHOUT = {"save_interval": None, "limits": replace(LIMITS, stop_s=20.0), "max_steps": 5}
"""No checkpoint before the end."""


def commands(world: Holding) -> list[do.Command]:
    """What the last event led to."""
    return [command for command in world.entries[-1].commands if not isinstance(command, do.SetTimer)]


def taken(version: int) -> Holding:
    """The world of a run that has taken so many steps, and asks for the next."""
    world = held_up(do.FinishStep, do.SaveCheckpoint, **WITHOUT)
    for _ in range(version):
        world.answer_held()
        until(world, lambda: bool(world.aside) and not world.is_busy)
    return world


def test_a_step_in_progress_is_taken_and_saved_before_the_run_ends() -> None:
    world = taken(2)
    world.tell(SAVE)
    assert world.verdict is None
    assert world.coordinator.waits()[0].what == "optimizer step 3 and its checkpoint"
    world.answer_held()
    assert do.SaveCheckpoint(version=Version(3)) in commands(world)
    assert not any(isinstance(command, do.PublishWeights) for command in commands(world)), "nobody needs it"
    assert world.coordinator.waits()[0].what == "checkpoint of step 3"
    world.answer_held()
    assert world.verdict == do.FinishRun(is_complete=False, reason="it was asked to stop")


def test_a_run_between_two_steps_saves_and_takes_no_further_step() -> None:
    world = held_up(do.Submit, **WITHOUT)
    world.answer_held()
    until(world, lambda: world.coordinator.version == 1 and bool(world.aside) and not world.is_busy)
    world.tell(SAVE)
    assert commands(world) == [do.SaveCheckpoint(version=Version(1))]
    world.held = ()
    until(world, lambda: world.verdict is not None)
    assert world.saved == [1]
    assert not any(isinstance(command, do.Accumulate) for command in commands(world))
    world.crash_and_resume()
    until(world, lambda: world.verdict is not None)
    assert world.verdict is not None
    assert world.verdict.is_complete


def test_a_checkpoint_in_progress_is_enough_if_no_step_follows_it() -> None:
    world = held_up(do.Submit, do.SaveCheckpoint)
    world.answer_held()
    until(world, lambda: {type(c) for c in world.aside} == {do.Submit, do.SaveCheckpoint} and not world.is_busy)
    world.tell(SAVE)
    assert world.verdict is None
    world.aside.sort(key=lambda command: isinstance(command, do.Submit))
    world.answer_held()
    assert world.verdict is not None
    assert world.saved == [1]


def test_a_run_with_nothing_to_save_ends_at_once() -> None:
    world = held_up(do.Submit, **WITHOUT)
    world.tell(SAVE)
    assert world.verdict == do.FinishRun(is_complete=False, reason="it was asked to stop")


def test_a_run_whose_trainer_is_not_there_ends_at_once() -> None:
    world = taken(1)
    world.held = (do.StartTrainer,)
    world.lose_trainer()
    world.tell(SAVE)
    assert world.verdict is not None


def test_a_trainer_that_is_lost_meanwhile_is_not_started_again() -> None:
    world = taken(1)
    world.tell(SAVE)
    world.lose_trainer()
    assert commands(world) == [do.FinishRun(is_complete=False, reason="it was asked to stop")]


def test_an_instance_that_is_lost_meanwhile_is_not_started_again() -> None:
    """The step in progress has all its responses: no instance is needed to take it and to save it."""
    world = taken(1)
    world.tell(SAVE)
    world.lose(I0, "it was killed")
    assert not any(isinstance(command, do.StartInstance) for command in commands(world))
    world.answer_held()
    world.answer_held()
    assert world.verdict == do.FinishRun(is_complete=False, reason="it was asked to stop")
    assert world.saved == [2]
    world.held = ()
    world.crash_and_resume()
    assert any(isinstance(command, do.StartInstance) for command in commands(world))
    until(world, lambda: world.verdict is not None)
    assert world.verdict is not None
    assert world.verdict.is_complete


def test_the_limit_ends_it_and_names_what_was_pending() -> None:
    world = taken(1)
    world.tell(SAVE)
    assert world.timer is not None
    assert world.timer <= world.now + 20.0
    pass_time(world, 20.0)
    assert world.verdict is not None
    assert world.verdict.reason == (
        "it was asked to stop; waited 20 s for optimizer step 2 and its checkpoint (limit 20 s)"
    )


@pytest.mark.parametrize("is_first", [True, False])
def test_a_request_without_a_save_ends_at_once(is_first: bool) -> None:
    world = taken(1)
    if not is_first:
        world.tell(SAVE)
    world.tell(replace(SAVE, saves=False))
    assert world.verdict is not None


def test_a_repeated_request_changes_nothing() -> None:
    world = taken(1)
    world.tell(SAVE)
    world.now += 5.0
    world.tell(SAVE)
    assert world.verdict is None
    [since] = [wait.since for wait in world.coordinator.waits() if "its checkpoint" in wait.what]
    assert since == world.now - 5.0


def test_a_run_that_stopped_in_its_last_step_is_complete() -> None:
    world = taken(4)
    world.tell(SAVE)
    world.answer_held()
    world.answer_held()
    assert world.verdict is not None
    assert world.verdict.is_complete


def test_a_resumed_run_does_not_remember_that_it_was_asked_to_stop() -> None:
    world = taken(2)
    world.tell(SAVE)
    world.held = ()
    world.crash_and_resume()
    until(world, lambda: world.verdict is not None)
    assert world.verdict is not None
    assert world.verdict.is_complete
