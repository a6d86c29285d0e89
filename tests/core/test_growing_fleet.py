"""The fleet grows and shrinks between steps: an instance that is added or retired is news, not an accident."""

from __future__ import annotations

import random

import pytest
from hypothesis import given

from core.growing_world import GrowingWorld
from core.histories import I0, NUM_PROMPTS, Case, History, cases, coordinated, held_to, one_schedule, until
from core.test_any_schedule import check_end
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import InstanceId
from tailrace.core.journal import decode, encode
from tailrace.core.schedule import Leftovers, Limits, Schedule


def run(case: Case) -> None:
    rng = random.Random(case.seed)
    world = GrowingWorld(case.schedule, rng, num_prompts=NUM_PROMPTS, trouble=case.trouble)
    check_end(History(schedule=case.schedule, world=world, verdict=world.run()))


@held_to(40)
@given(cases(one_schedule, 0.0, 0.05))
def test_any_sound_schedule_reaches_its_end_while_the_fleet_grows_and_shrinks(case: Case) -> None:
    """No response is lost, whatever becomes of leftovers."""
    run(case)


@held_to(20)
@given(cases(coordinated, 0.0, 0.05))
def test_work_moves_to_instances_that_came_later_and_away_from_those_that_go(case: Case) -> None:
    run(case)


def started(**changes: object) -> GrowingWorld:
    common = {"train_source": "train", "batch_size": 2, "group_size": 2, "max_steps": 6, "num_instances": 2}
    schedule = Schedule(**{**common, **changes})
    world = GrowingWorld(schedule, random.Random(0), num_prompts=NUM_PROMPTS, change=0.0)
    world.tell(ev.RunStarted(schedule=schedule))
    return world


def busy(world: GrowingWorld, *numbers: int) -> bool:
    return all(world.running.get(InstanceId(number)) for number in numbers)


def test_an_instance_that_is_added_is_started_and_given_work() -> None:
    world = started()
    until(world, lambda: busy(world, 0, 1))
    number = world.add()
    starts = [command for command in world.entries[-1].commands if isinstance(command, do.StartInstance)]
    assert [command.instance for command in starts] == [number] == [InstanceId(2)]
    until(world, lambda: busy(world, 2))


def test_an_instance_that_is_there_cannot_be_added() -> None:
    world = started()
    until(world, lambda: busy(world, 0, 1))
    before = world.coordinator.num_refused_reports
    world.tell(ev.InstanceAdded(instance=I0))
    assert world.entries[-1].commands == ()
    assert world.coordinator.num_refused_reports == before + 1


@pytest.mark.parametrize(
    "leftovers", [Leftovers.WAIT, Leftovers.DROP, Leftovers.DEFER, Leftovers.RESUME, Leftovers.KEEP]
)
def test_an_instance_that_is_retired_ends_or_hands_over_what_it_runs_and_stops(leftovers: Leftovers) -> None:
    world = started(leftovers=leftovers)
    until(world, lambda: busy(world, 0, 1))
    mine = {*world.running[I0]}
    world.retire(I0)
    assert mine <= world.coordinator.live(), "a response was given up because its instance goes"
    until(world, lambda: I0 in world.stopped)
    until(world, lambda: world.verdict is not None)
    assert world.verdict is not None
    assert world.verdict.is_complete


def test_an_idle_instance_that_is_retired_stops_at_once() -> None:
    world = started(batch_size=1, group_size=1)
    until(world, lambda: {*world.running} == {0, 1} and not all(world.running.values()) and not world.open)
    idle = next(number for number, responses in world.running.items() if not responses)
    world.retire(idle)
    assert [c for c in world.entries[-1].commands if not isinstance(c, do.SetTimer)] == [do.StopInstance(instance=idle)]


def test_an_instance_that_is_lost_while_it_goes_is_not_started_again() -> None:
    world = started()
    until(world, lambda: busy(world, 0, 1))
    world.retire(I0)
    world.lose(I0, "it was killed")
    until(world, lambda: world.verdict is not None)
    starts = [c.instance for entry in world.entries for c in entry.commands if isinstance(c, do.StartInstance)]
    assert starts.count(I0) == 1


def test_a_run_whose_instances_are_all_retired_waits_for_one_to_be_added() -> None:
    world = started()
    until(world, lambda: busy(world, 0, 1))
    for number in (I0, InstanceId(1)):
        world.retire(number)
    until(world, lambda: world.stopped == {0, 1})
    assert world.verdict is None
    [wait] = [wait for wait in world.coordinator.waits() if wait.what == "a rollout instance to be added"]
    assert wait.since == world.now
    world.add()
    assert wait not in world.coordinator.waits()
    until(world, lambda: world.verdict is not None)
    assert world.verdict is not None
    assert world.verdict.is_complete


def test_instances_that_come_and_go_are_not_counted_as_restarts() -> None:
    world = started(limits=Limits(max_restarts=0))
    for number in range(8):
        until(world, lambda number=number: InstanceId(number) in world.running and len(world.running) > 1)
        world.retire(InstanceId(number))
        world.add()
        until(world, lambda number=number: InstanceId(number) in world.stopped)
    assert world.verdict is None


def test_a_run_that_is_resumed_starts_the_fleet_it_had() -> None:
    world = started()
    until(world, lambda: busy(world, 0, 1))
    world.add()
    until(world, lambda: InstanceId(2) in world.running)
    world.retire(I0)
    world.crash_and_resume()
    starts = [c.instance for c in world.entries[-1].commands if isinstance(c, do.StartInstance)]
    assert sorted(starts) == [1, 2]


def test_the_end_of_an_instance_has_a_wait_with_a_limit() -> None:
    world = started()
    until(world, lambda: busy(world, 0, 1))
    world.retire(I0)
    until(world, lambda: any(isinstance(command, do.StopInstance) for command in world.open))
    assert any("instance 0" in wait.what and wait.limit_s > 0 for wait in world.coordinator.waits())


def test_news_of_the_fleet_is_part_of_the_journal() -> None:
    world = started()
    until(world, lambda: busy(world, 0, 1))
    world.add()
    added = world.entries[-1]
    world.retire(I0)
    retired = world.entries[-1]
    assert [decode(encode(entry)) for entry in (added, retired)] == [added, retired]
