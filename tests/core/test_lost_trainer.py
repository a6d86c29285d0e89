"""The training process dies: it is started again, takes up where the run is, and the run goes on; within a bound."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import Version
from tailrace.core.schedule import Leftovers, Limits, Placement, Schedule

SCHEDULE = Schedule(train_source="train", batch_size=2, group_size=2, max_steps=4, save_interval=2)
REASON = "worker 'training' was killed by SIGKILL"


class Unlucky(World):
    """A world that loses its trainer now and then, whatever the trainer is doing."""

    lose_chance = 0.0

    def act(self) -> None:
        if self.open and self.rng.random() < self.lose_chance:
            self.lose_trainer()
        else:
            super().act()


def begun(schedule: Schedule = SCHEDULE, seed: int = 0) -> World:
    world = World(schedule, random.Random(seed))
    world.tell(ev.RunStarted(schedule=schedule))
    return world


def until_open(world: World, kind: type[do.Command]) -> None:
    while not any(isinstance(command, kind) for command in world.open):
        world.advance()


def asked(world: World, kind: type[do.Command]) -> list[do.Command]:
    return [command for entry in world.entries for command in entry.commands if isinstance(command, kind)]


def test_a_lost_trainer_is_started_again_and_the_step_is_asked_for_again() -> None:
    world = begun()
    until_open(world, do.Accumulate)
    [step] = [command for command in world.open if isinstance(command, do.Accumulate)]
    world.lose_trainer()
    assert [type(c) for c in world.entries[-1].commands if not isinstance(c, do.SetTimer)] == [do.StartTrainer]
    until_open(world, do.Accumulate)
    assert step in world.open
    while world.verdict is None:
        world.advance()
    assert world.verdict.is_complete


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    "schedule",
    [
        SCHEDULE,
        replace(SCHEDULE, placement=Placement.COLOCATED, num_instances=2),
        replace(SCHEDULE, leftovers=Leftovers.KEEP, max_staleness=1, num_instances=2, save_interval=1),
    ],
    ids=["rounds", "colocated", "keep"],
)
def test_a_run_that_loses_its_trainer_at_any_moment_comes_to_its_end(schedule: Schedule, seed: int) -> None:
    patient = replace(schedule, limits=Limits(max_restarts=1000))
    world = Unlucky(patient, random.Random(seed), trouble=0.02 * (seed % 2))
    world.lose_chance = 0.1
    finish = world.run()
    assert finish.is_complete, finish.reason
    assert len(world.trained) == schedule.max_steps


def test_weights_are_published_again_before_an_instance_pulls() -> None:
    world = begun()
    while world.coordinator.version < 1:
        world.advance()
    until_open(world, do.PullWeights)
    world.lose_trainer()
    later = len(world.entries)
    instance = next(iter(world.running))
    world.lose(instance, "it was killed")
    while world.coordinator.version < 2:
        world.advance()
    told = [
        (type(entry.event), [type(command) for command in entry.commands if isinstance(command, do.PullWeights)])
        for entry in world.entries[later:]
    ]
    published = [kind for kind, _ in told].index(ev.WeightsPublished)
    assert not any(pulls for _, pulls in told[:published])
    assert any(pulls for _, pulls in told[published:])


def test_a_checkpoint_that_was_being_written_is_asked_for_again() -> None:
    world = begun()
    until_open(world, do.SaveCheckpoint)
    assert world.coordinator.version == 2
    world.lose_trainer()
    until_open(world, do.SaveCheckpoint)
    assert world.coordinator.version == 2
    assert asked(world, do.SaveCheckpoint) == 2 * [do.SaveCheckpoint(version=Version(2))]


@pytest.mark.parametrize("max_restarts", [0, 1, 3])
def test_a_trainer_that_dies_again_and_again_ends_the_run_with_a_sentence(max_restarts: int) -> None:
    world = begun(replace(SCHEDULE, limits=Limits(max_restarts=max_restarts)))
    while world.coordinator.version < 1:
        world.advance()
    while world.verdict is None:
        world.lose_trainer()
    times = f"{max_restarts + 1} time{'s' if max_restarts else ''}"
    assert not world.verdict.is_complete
    assert world.verdict.reason == f"the trainer was lost {times} within one step; the last time: {REASON}"
    assert len(asked(world, do.StartTrainer)) == 1 + max_restarts


def test_a_trained_step_makes_up_for_earlier_losses() -> None:
    world = begun(replace(SCHEDULE, limits=Limits(max_restarts=1)))
    for _ in range(SCHEDULE.max_steps):
        until_open(world, do.Accumulate)
        world.lose_trainer()
        version = world.coordinator.version
        while world.coordinator.version == version:
            world.advance()
    assert world.verdict is None or world.verdict.is_complete


def test_a_trainer_that_refuses_ends_the_run() -> None:
    world = begun()
    until_open(world, do.Accumulate)
    world.tell(ev.TrainingFailed(reason="the gradient is not finite"))
    assert world.verdict is not None
    assert world.verdict.reason == "training failed: the gradient is not finite"


class Careful(Unlucky):
    """A world that looks, at every checkpoint, whether the payload of what is being trained would be kept."""

    def tell(self, event: ev.Event) -> None:
        super().tell(event)
        live = self.coordinator.live()
        for command in self.open:
            if isinstance(command, do.Accumulate):
                assert live.issuperset(command.responses)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_being_trained_is_live_so_no_checkpoint_gives_up_its_payload(seed: int) -> None:
    schedule = replace(
        SCHEDULE, leftovers=Leftovers.KEEP, max_staleness=1, save_interval=1, limits=Limits(max_restarts=1000)
    )
    world = Careful(schedule, random.Random(seed))
    world.lose_chance = 0.05
    assert world.run().is_complete
