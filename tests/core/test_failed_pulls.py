"""An instance that fails to pull published weights again and again is killed and counts as lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core.histories import I0, started, until
from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.fleet.planning import MAX_FAILED_PULLS
from tailrace.core.ids import Version
from tailrace.core.schedule import Leftovers, Limits

Answer = Callable[[World], ev.Event]


def asked(world: World) -> do.PullWeights | None:
    return next((command for command in world.open if isinstance(command, do.PullWeights)), None)


def failed(world: World) -> ev.Event:
    return ev.PullFailed(instance=I0, reason="the file is gone")


def older(world: World) -> ev.Event:
    return ev.WeightsPulled(instance=I0, version=Version(0), seconds=0.1)


def fail(world: World, count: int, answer: Answer = failed) -> list[do.Command]:
    """So many pulls fail, one after the other. Return what follows from the last."""
    for _ in range(count):
        until(world, lambda: asked(world) is not None)
        command = asked(world)
        assert command is not None
        world.open.remove(command)
        world.tell(world.signed(answer(world)))
    return list(world.entries[-1].commands)


@pytest.mark.parametrize("changes", [{}, {"leftovers": Leftovers.KEEP, "max_staleness": 1}], ids=["rounds", "keep"])
@pytest.mark.parametrize("answer", [failed, older])
def test_an_instance_whose_pulls_fail_again_and_again_is_killed(changes: dict[str, object], answer: Answer) -> None:
    world = started(num_instances=1, **changes)
    assert not any(isinstance(command, do.KillInstance) for command in fail(world, MAX_FAILED_PULLS - 1, answer))
    commands = fail(world, 1, answer)
    reason = f"{MAX_FAILED_PULLS} pulls of version 1 failed in a row"
    assert do.KillInstance(instance=I0, reason=reason) in commands
    assert not any(isinstance(command, do.PullWeights) for command in commands)
    until(world, lambda: world.verdict is not None)
    assert world.verdict is not None
    assert world.verdict.is_complete, "the instance was started again, and then it pulled"


def test_a_run_whose_only_instance_never_pulls_ends_with_a_sentence() -> None:
    class NeverPulls(World):
        num_failed = 0

        def answer(self, command: do.Command) -> None:
            if isinstance(command, do.PullWeights):
                self.num_failed += 1
                self.say(I0, failed(self))
            else:
                super().answer(command)

    begun = started(num_instances=1, limits=Limits(max_restarts=2))
    world = NeverPulls(begun.schedule, begun.rng)
    verdict = world.run()
    assert not verdict.is_complete
    assert "instance 0 was lost 3 times within one step" in verdict.reason
    assert verdict.reason.endswith(f"{MAX_FAILED_PULLS} pulls of version 1 failed in a row")
    assert world.num_failed == 3 * MAX_FAILED_PULLS


def test_a_pull_that_succeeds_ends_the_row() -> None:
    world = started(num_instances=1, max_steps=6)
    for version in range(1, 4):
        commands = fail(world, MAX_FAILED_PULLS - 1)
        assert not any(isinstance(command, do.KillInstance) for command in commands)
        until(world, lambda version=version: world.versions[I0] == version)


def test_pulls_that_fail_while_nothing_is_published_do_not_count() -> None:
    """The trainer is lost: it is not the instance that fails."""
    world = started(num_instances=1, max_steps=9, limits=Limits(max_restarts=1000))
    fail(world, MAX_FAILED_PULLS - 1)
    until(world, lambda: asked(world) is not None)
    command = asked(world)
    assert command is not None
    world.open.remove(command)
    world.lose_trainer()
    world.tell(world.signed(failed(world)))
    until(world, lambda: asked(world) is not None)
    assert not any(isinstance(each, do.KillInstance) for entry in world.entries for each in entry.commands)


def test_a_run_of_an_earlier_release_pulls_without_end() -> None:
    world = started(num_instances=1, edition=1)
    commands = fail(world, 3 * MAX_FAILED_PULLS)
    assert any(isinstance(command, do.PullWeights) for command in commands)
