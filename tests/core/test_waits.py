"""A wait has a name and a limit, and is acted on when the limit is passed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.histories import I0, running, started, until
from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.ids import ResponseId, Version
from tailrace.core.responses.response import Finish
from tailrace.core.schedule import Limits, Schedule
from tailrace.policies.strategies import policies_of


def names(world: World) -> list[str]:
    return [wait.what for wait in world.coordinator.waits()]


def end(world: World, response: ResponseId) -> None:
    ended = ev.Finished(response=response, length=9, finish=Finish.STOP)
    world.tell(ev.RolloutReported(instance=I0, version=Version(0), finished=(ended,)))


def test_a_wait_for_several_names_the_first_and_counts_the_others() -> None:
    world = started(batch_size=1, group_size=2)
    first = running(world)
    second = first._replace(member=1)
    assert f"response {first} and 1 more on instance 0" in names(world)
    end(world, first)
    assert f"response {second} on instance 0" in names(world)
    assert f"reward of {first}" in names(world)
    end(world, second)
    assert f"reward of {first} and 1 more" in names(world)


def test_a_step_and_an_instance_that_starts_are_named() -> None:
    world = started()
    assert "start of instance 0" in names(world)
    until(world, lambda: any(isinstance(command, do.Accumulate) for command in world.open))
    assert "optimizer step 1" in names(world)


def test_a_confirmed_abort_is_a_sign_of_life_and_what_still_runs_is_awaited() -> None:
    world = started(batch_size=2, group_size=1, launch_responses=2, max_in_flight=4)
    first = running(world)
    end(world, first)
    world.tell(ev.ResponsesScored(scores=(world.score(first),)))
    [abort] = [command for command in world.entries[-1].commands if isinstance(command, do.Abort)]
    assert any(name.startswith("response ") for name in names(world)), "the instance still has work"
    world.now += 7.0
    world.answer(abort)
    [since] = [wait.since for wait in world.coordinator.waits() if wait.instance == I0]
    assert since == world.now


def test_an_instance_is_started_again_three_times_within_one_step() -> None:
    world = started()
    for _ in range(4):
        assert world.verdict is None
        running(world)
        world.lose(I0, "it was killed")
    assert world.verdict is not None
    assert "instance 0 was lost 4 times within one step" in world.verdict.reason


def test_a_timer_that_is_still_to_come_is_not_set_again() -> None:
    world = started(limits=Limits(prompts_s=5.0))
    assert do.SetTimer(at=5.0) in world.entries[-1].commands
    world.now = 4.0
    world.tell(ev.TrainerReached(version=Version(0)))
    assert not any(isinstance(command, do.SetTimer) for command in world.entries[-1].commands)


@pytest.mark.parametrize("now", [5.0, 6.0])
def test_a_wait_at_its_limit_is_noticed_with_whatever_comes_next(now: float) -> None:
    world = started(limits=Limits(prompts_s=5.0))
    world.now = now
    world.tell(ev.TrainerReached(version=Version(0)))
    assert world.verdict is not None
    assert world.verdict.reason == f"waited {now:.0f} s for prompts of 'train' (limit 5 s)"


def test_a_journal_is_followed_under_the_limits_it_was_written_with() -> None:
    """A run that is resumed with other limits before its first checkpoint reads its journal from the start."""
    then = Schedule(train_source="train", batch_size=1, group_size=1, max_steps=1, limits=Limits(prompts_s=5.0))
    schedule = replace(then, limits=Limits(prompts_s=50.0))
    coordinator = Coordinator(schedule, policies=policies_of(schedule))
    coordinator.handle(ev.RunStarted(schedule=then), now=0.0)
    [limit_s] = [wait.limit_s for wait in coordinator.waits() if wait.what == "prompts of 'train'"]
    assert limit_s == 5.0
