"""What a resumed run forgives, writes again and leaves; and when a checkpoint is written at all."""

from __future__ import annotations

import pytest

from core.histories import I0, running, started, until
from core.world import World
from tailrace.core import commands as do
from tailrace.core.ids import Version
from tailrace.core.schedule import Leftovers, Limits


def saves(world: World) -> list[do.SaveCheckpoint]:
    return [c for entry in world.entries for c in entry.commands if isinstance(c, do.SaveCheckpoint)]


def test_losses_of_an_instance_are_forgiven() -> None:
    world = started(limits=Limits(max_restarts=0))
    running(world)
    world.lose(I0, "out of memory")
    assert world.verdict is not None
    assert "instance 0 was lost 1 time within one step" in world.verdict.reason
    world.crash_and_resume()
    assert do.StartInstance(instance=I0, incarnation=2) in world.entries[-1].commands
    until(world, lambda: world.verdict is not None)
    assert world.verdict.is_complete


@pytest.mark.parametrize("is_on_disk", [True, False])
def test_a_checkpoint_is_written_again_unless_it_is_on_disk(is_on_disk: bool) -> None:
    world = started(save_interval=1)
    until(world, lambda: any(isinstance(command, do.SaveCheckpoint) for command in world.open))
    [asked] = saves(world)
    world.saved += [asked.version] if is_on_disk else []
    world.crash_and_resume()
    until(world, lambda: world.verdict is not None)
    assert world.saved == [1, 2, 3]
    assert saves(world).count(asked) == (1 if is_on_disk else 2)


def test_a_checkpoint_is_not_written_of_a_version_the_trainer_has_left() -> None:
    world = started(save_interval=2, max_steps=4)
    until(world, lambda: any(isinstance(command, do.SaveCheckpoint) for command in world.open))
    [asked] = saves(world)
    world.open.remove(asked)  # it never comes to its end
    until(world, lambda: world.coordinator.version == 3)
    world.crash_and_resume()
    until(world, lambda: world.verdict is not None)
    assert world.saved == [4]


def test_a_checkpoint_is_asked_for_between_two_steps() -> None:
    """While a step is taken the trainer leaves the version that is to be kept."""
    world = started(batch_size=1, group_size=1, max_steps=9, leftovers=Leftovers.KEEP, max_staleness=2, save_interval=1)
    rooms = world.coordinator.rooms
    until(world, lambda: any(isinstance(command, do.SaveCheckpoint) for command in world.open))
    [late] = saves(world)
    world.open.remove(late)  # it takes longer than the next step
    until(world, lambda: rooms.training.save_due == 2 and rooms.training.step.has_begun)
    world.answer(late)
    assert saves(world) == [late]
    until(world, lambda: rooms.training.version == 3)
    assert saves(world) == [late, do.SaveCheckpoint(version=Version(3))]
