"""Checkpoints that follow time: how often, and what happens where there is no room."""

from __future__ import annotations

from core.histories import until
from core.test_stopped_trainer import Holding, held_up
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import Version
from tailrace.core.schedule import Limits
from tailrace.core.training.saves import PAUSE_S, Saves

LONG = Limits(start_s=1e6, progress_s=1e6, reward_s=1e6, prompts_s=1e6, train_s=1e6, weights_s=1e6, checkpoint_s=1e6)
BY_TIME = {"save_interval": None, "save_share": 0.05, "max_steps": 9, "limits": LONG}


def step(world: Holding, seconds: float) -> list[do.SaveCheckpoint]:
    """Return the checkpoints that the next step, which takes so long, leads to."""
    world.now += seconds
    [finish] = [command for command in world.aside if isinstance(command, do.FinishStep)]
    world.aside.remove(finish)
    world.answer(finish)
    found = [c for c in world.entries[-1].commands if isinstance(c, do.SaveCheckpoint)]
    if not found:
        until(world, lambda: bool(world.aside) and not world.is_busy)
    return found


def begun() -> Holding:
    return held_up(do.FinishStep, do.SaveCheckpoint, **BY_TIME)


def save(world: Holding, seconds: float) -> None:
    """The checkpoint that was asked for takes so long."""
    world.now += seconds
    [asked] = [command for command in world.aside if isinstance(command, do.SaveCheckpoint)]
    world.aside.remove(asked)
    world.answer(asked)
    until(world, lambda: bool(world.aside) and not world.is_busy)


def test_the_first_checkpoint_comes_after_a_pause_and_the_next_when_it_is_worth_its_time() -> None:
    world = begun()
    assert step(world, 100.0) == []
    assert step(world, PAUSE_S) == [do.SaveCheckpoint(version=Version(2), may_skip=True)]
    save(world, 100.0)
    assert step(world, 1000.0) == [], "100 s are more than 5 % of 1000 s"
    assert step(world, 1000.0) == [do.SaveCheckpoint(version=Version(4), may_skip=True)]


def test_checkpoints_take_no_more_than_their_share() -> None:
    saves = Saves(version=Version(3), at=1000.0, seconds=60.0)
    assert not saves.is_due(0.03, 1000.0 + 1999.0)
    assert saves.is_due(0.03, 1000.0 + 2000.0)
    assert not saves.is_due(0.0, 1e9), "time does not decide"


def test_a_skipped_checkpoint_is_tried_again_later_and_the_last_one_is_not_skipped() -> None:
    world = begun()
    assert step(world, PAUSE_S)
    world.aside = [command for command in world.aside if not isinstance(command, do.SaveCheckpoint)]
    world.tell(ev.CheckpointSkipped(version=Version(1), reason="there is no room", incarnation=1))
    assert world.verdict is None
    until(world, lambda: bool(world.aside) and not world.is_busy)
    assert step(world, 10.0) == []
    assert step(world, PAUSE_S) == [do.SaveCheckpoint(version=Version(3), may_skip=True)]
    save(world, 1.0)
    for _ in range(5):
        assert step(world, 1.0) == []
    assert step(world, 1.0) == [do.SaveCheckpoint(version=Version(9))]


def test_a_skip_that_was_not_asked_for_is_refused() -> None:
    world = begun()
    world.tell(ev.CheckpointSkipped(version=Version(1), reason="there is no room", incarnation=1))
    assert world.coordinator.num_refused_reports == 1


def test_a_run_whose_interval_is_a_number_saves_by_steps_alone() -> None:
    world = held_up(do.FinishStep, do.SaveCheckpoint, save_interval=5, max_steps=9, limits=LONG)
    assert step(world, 1e5) == []
