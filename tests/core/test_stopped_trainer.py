"""A trainer that no longer answers is killed and started again, as an instance is. One that is gone is not heard."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace

import pytest

from core.histories import until
from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.ids import Version
from tailrace.core.schedule import Leftovers, Limits, Schedule
from tailrace.policies.strategies import policies_of

LIMITS = Limits(start_s=40.0, train_s=50.0, weights_s=60.0, checkpoint_s=70.0, max_restarts=1)
"""Shorter than every other limit."""


class Holding(World):
    """A world whose trainer does not get to some kinds of commands."""

    def __init__(self, *held: type[do.Command], **changes: object) -> None:
        given = {"batch_size": 1, "group_size": 1, "max_steps": 3, "save_interval": 1, "limits": LIMITS, **changes}
        super().__init__(Schedule(train_source="train", **given), random.Random(0))
        self.held = held
        self.aside: list[do.Command] = []

    def tell(self, event: ev.Event) -> None:
        super().tell(event)
        self.aside += [command for command in self.open if isinstance(command, self.held)]
        self.open = deque(command for command in self.open if not isinstance(command, self.held))

    def answer_held(self) -> None:
        """The trainer does the first thing that was held up."""
        self.answer(self.aside.pop(0))


def held_up(*held: type[do.Command], **changes: object) -> Holding:
    """The world at the moment when nothing else is left to do than the first of these commands."""
    world = Holding(*held, **changes)
    world.tell(ev.RunStarted(schedule=world.schedule))
    until(world, lambda: bool(world.aside) and not world.is_busy)
    return world


def pass_time(world: World, seconds: float) -> None:
    """So much time passes, and nothing is heard of the trainer."""
    world.now += seconds
    world.tell(ev.TimerFired())


def killed(world: World) -> do.KillTrainer:
    [kill] = [c for entry in world.entries for c in entry.commands if isinstance(c, do.KillTrainer)]
    return kill


def test_a_step_beyond_its_limit_kills_the_trainer_and_the_run_goes_on() -> None:
    world = held_up(do.FinishStep)
    since = world.coordinator.waits()[0].since
    pass_time(world, LIMITS.train_s)
    assert world.verdict is None
    assert killed(world).reason == f"waited {world.now - since:.0f} s for optimizer step 1 (limit 50 s)"
    world.held = ()
    until(world, lambda: world.verdict is not None)
    assert world.verdict is not None
    assert world.verdict.is_complete
    [lost] = [entry for entry in world.entries if isinstance(entry.event, ev.TrainerLost)]
    assert any(isinstance(command, do.StartTrainer) for command in lost.commands)


@pytest.mark.parametrize(
    ("held", "what", "limit_s"),
    [
        (do.StartTrainer, "start of the trainer", 40),
        (do.PublishWeights, "publishing of version 1", 60),
        (do.SaveCheckpoint, "checkpoint of step 1", 70),
    ],
)
def test_anything_beyond_its_limit_kills_the_trainer(held: type[do.Command], what: str, limit_s: int) -> None:
    world = held_up(held)
    pass_time(world, limit_s)
    assert f" s for {what} (limit {limit_s} s)" in killed(world).reason


AHEAD = {"leftovers": Leftovers.KEEP, "max_staleness": 1}
"""Batches are there before the trainer has need of them."""


def test_a_step_behind_a_checkpoint_is_not_blamed_for_it_and_has_its_whole_time_afterwards() -> None:
    """The worker does one thing after the other: a step that was asked for waits until the checkpoint is written."""
    world = held_up(do.SaveCheckpoint, do.FinishStep, **AHEAD, max_steps=5)
    world.answer_held()  # the first step
    until(world, lambda: len(world.aside) == 2 and not world.is_busy)
    pass_time(world, LIMITS.train_s + 1)
    assert not any(isinstance(c, do.KillTrainer) for entry in world.entries for c in entry.commands)
    world.answer_held()  # the checkpoint
    [since] = [wait.since for wait in world.coordinator.waits() if wait.what.startswith("optimizer step")]
    assert since == world.now


def test_a_step_that_waits_for_a_publish_says_so() -> None:
    limits = replace(LIMITS, weights_s=500.0)
    world = held_up(do.PublishWeights, do.FinishStep, **AHEAD, save_interval=None, limits=limits)
    world.answer_held()  # the first step
    until(world, lambda: len(world.aside) == 2 and not world.is_busy)
    pass_time(world, LIMITS.train_s)
    assert "s for optimizer step 2 and, before it, publishing of version 1 (limit 50 s)" in killed(world).reason


def test_a_trainer_that_is_killed_again_and_again_ends_the_run_and_the_sentence_names_the_wait() -> None:
    world = held_up(do.StartTrainer, do.KillTrainer)
    for _ in range(2):
        assert world.verdict is None
        pass_time(world, LIMITS.start_s)
        world.answer(world.aside.pop())  # it is killed
    assert world.verdict is not None
    assert world.verdict.reason == (
        "the trainer was lost 2 times within one step; the last time: waited 40 s for start of the trainer (limit 40 s)"
    )


def test_a_trainer_that_does_not_even_end_fails_the_run() -> None:
    world = held_up(do.FinishStep)
    world.held = (do.KillTrainer,)
    pass_time(world, LIMITS.train_s)
    pass_time(world, LIMITS.start_s)
    assert world.verdict is not None
    assert world.verdict.reason == "waited 40 s for end of the trainer (limit 40 s)"


def test_a_trainer_that_is_being_killed_is_asked_nothing_and_its_last_words_count() -> None:
    world = held_up(do.FinishStep)
    pass_time(world, LIMITS.train_s)
    world.answer_held()
    assert world.coordinator.version == 1
    assert not any(isinstance(c, do.PublishWeights | do.SaveCheckpoint) for c in world.entries[-1].commands)


def test_a_run_of_the_release_before_fails_where_it_did() -> None:
    world = held_up(do.FinishStep, edition=1)
    pass_time(world, LIMITS.train_s)
    assert world.verdict is not None
    assert "s for optimizer step 1 (limit 50 s)" in world.verdict.reason


# Repeats


def incarnations(world: World) -> list[int]:
    return [c.incarnation for entry in world.entries for c in entry.commands if isinstance(c, do.StartTrainer)]


def test_a_repeated_loss_starts_no_second_trainer() -> None:
    world = held_up(do.FinishStep)
    world.lose_trainer()
    lost = world.entries[-1].event
    assert incarnations(world) == [1, 2]
    world.tell(lost)
    assert incarnations(world) == [1, 2]
    assert world.coordinator.last_refused_report == "the trainer of start 1 is gone"


@pytest.mark.parametrize("is_old", [True, False], ids=["of the trainer that is gone", "of the present one"])
def test_only_the_present_trainer_takes_the_step(is_old: bool) -> None:
    world = held_up(do.FinishStep)
    world.lose_trainer()
    until(world, lambda: len(world.aside) == 2)
    late = ev.StepTrained(version=Version(1), seconds=0.1, metrics=(), incarnation=1 if is_old else 2)
    world.tell(late)
    assert world.coordinator.version == (0 if is_old else 1)


def test_starts_of_a_run_of_the_release_before_have_no_number() -> None:
    world = held_up(do.FinishStep, edition=1)
    world.lose_trainer()
    assert incarnations(world) == [0, 0]


def test_a_snapshot_of_the_release_before_is_read() -> None:
    schedule = Schedule(train_source="train", batch_size=1, group_size=1, max_steps=1)
    snapshot = Coordinator(schedule, policies=policies_of(schedule)).snapshot()
    for name in ("incarnation", "killed_at", "saves"):
        snapshot["training"].pop(name, None)
    Coordinator.restore(schedule, snapshot, policies=policies_of(schedule)).check()
