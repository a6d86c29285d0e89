"""Work and versions that move between instances: what must hold whatever the strategies choose.

Histories with fixed seeds: answers come late and in any order, instances are lost with what they did not report,
rewards fail, the run crashes and resumes. `make histories` runs many more.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from core.histories import NUM_PROMPTS, History, coordinated, seeds
from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.coordination import Coordination, Strategy
from tailrace.core.ids import GroupId, InstanceId, TrajectoryId, Version
from tailrace.core.journal import replay_all
from tailrace.core.schedule import Leftovers, Schedule
from tailrace.core.trajectory import Finish
from tailrace.core.views import fleet_view

SCALE = float(os.environ.get("TAILRACE_HISTORIES", "1"))
ALL = dict.fromkeys(("routing", "synchronization", "migration"), Strategy.THROUGHPUT)


class WatchedWorld(World):
    """Also sees to it that an instance which has answered everything owes nothing: no plan waits for ever."""

    def tell(self, event: ev.Event) -> None:
        super().tell(event)
        told = {command.instance for command in self.open if hasattr(command, "instance")}
        for number, instance in self.coordinator._state.instances.items():
            if number not in told and self.verdict is None:
                assert not instance.stopping, f"{instance} waits for an answer that was given"
                assert not instance.is_called, f"{instance} was called and is not pulling"


def steered(name: str, count: int, *, trouble: float, checks: bool = False, **changes: object) -> list[History]:
    found = []
    for seed in seeds(round(count * SCALE)):
        rng = random.Random(f"{name}-{seed}")
        schedule = coordinated(rng, **changes)
        world = WatchedWorld(schedule, rng, num_prompts=NUM_PROMPTS, trouble=trouble, checks=checks)
        found.append(History(schedule=schedule, world=world, verdict=world.run()))
    return found


@pytest.fixture(scope="module")
def calm() -> list[History]:
    return steered("calm", 60, trouble=0.0)


@pytest.fixture(scope="module")
def troubled() -> list[History]:
    return steered("troubled", 24, trouble=0.05, checks=True)


@pytest.fixture(scope="module")
def histories(calm: list[History], troubled: list[History]) -> list[History]:
    return calm + troubled


def test_every_run_reaches_its_end(histories: list[History]) -> None:
    for found in histories:
        assert found.verdict.is_complete, found.verdict.reason
        assert len(found.steps()) == found.schedule.max_steps


def test_no_token_is_older_than_the_bound_allows(histories: list[History]) -> None:
    for found in histories:
        for step in found.steps():
            assert min(step.oldest) >= step.version - (found.schedule.max_staleness or 0)


def test_every_prompt_is_trained_once_or_still_there(histories: list[History]) -> None:
    for found in histories:
        state = found.world.coordinator._state
        live = {group for group in state.groups if group.source == "train"}
        parts = [set(found.trained()), live, found.left_out()]
        assert sum(map(len, parts)) == len(set().union(*parts))
        assert set().union(*parts) == set(found.offered())
        assert set(found.trained().values()) == {1}
        for step in found.steps():
            assert len({t.group for t in step.trajectories}) == found.schedule.batch_size


def test_a_response_runs_on_no_instance_older_than_its_tokens_or_its_group(histories: list[History]) -> None:
    for found in histories:
        held: dict[InstanceId, Version] = {}
        newest: dict[TrajectoryId, tuple[int, Version]] = {}
        groups: dict[tuple[GroupId, int], Version] = {}
        for entry in found.world.entries:
            match entry.event:
                case ev.InstanceStarted(instance=number, version=version):
                    held[number] = version
                case ev.WeightsPulled(instance=number, version=version):
                    assert version > held[number]
                    held[number] = version
                case ev.RolloutReported(version=version, progressed=progressed, finished=finished):
                    for news in (*progressed, *finished):
                        if news.length > newest.get(news.trajectory, (0, 0))[0]:
                            newest[news.trajectory] = (news.length, version)
            submits = [command for command in entry.commands if isinstance(command, do.Submit)]
            given = [(held[submit.instance], d.trajectory) for submit in submits for d in submit.dispatches]
            # Of those given out together the oldest version is the group's: its first member went there.
            for version, trajectory in sorted(given):
                assert version >= newest.get(trajectory, (0, 0))[1]
                assert version >= groups.setdefault((trajectory.group, trajectory.attempt), version)


def test_a_journal_replays_to_identical_commands(troubled: list[History]) -> None:
    for found in troubled[:20]:
        entries = found.world.entries
        assert replay_all(entries, lambda schedule: World(schedule, random.Random(0)).coordinator) == len(entries)


def test_the_strategies_are_used(calm: list[History]) -> None:
    """Work moves, and pulls are not made: else these tests show nothing."""
    num_moved = num_pulls_saved = 0
    for found in calm:
        places: dict[TrajectoryId, set[InstanceId]] = {}
        for command in found.commands:
            for dispatch in command.dispatches if isinstance(command, do.Submit) else ():
                places.setdefault(dispatch.trajectory, set()).add(command.instance)
        num_moved += sum(len(instances) > 1 for instances in places.values())
        pulled = Counter(c.version for c in found.commands if isinstance(c, do.PullWeights))
        num_pulls_saved += sum(found.schedule.num_instances - count for count in pulled.values())
    assert num_moved > 50
    assert num_pulls_saved > 20


def test_plans_keep_their_distance_and_nothing_is_planned_while_nothing_happens() -> None:
    for found in steered("paced", 10, trouble=0.0, coordination=replace(Coordination(plan_interval_s=3.0), **ALL)):
        submits = [e.now for e in found.world.entries if any(isinstance(c, do.Submit) for c in e.commands)]
        assert all(later >= earlier + 3.0 for earlier, later in pairwise(submits))
        fired = [e for e in found.world.entries if isinstance(e.event, ev.TimerFired)]
        assert len(fired) < len(found.world.entries) / 2


def quiet_world(**numbers: object) -> World:
    """Two instances that hold three responses each; nothing else happens by itself."""
    coordination = Coordination(kv_tokens=40, prompt_length=2, **{**ALL, **numbers})
    schedule = Schedule(
        train_source="train",
        batch_size=2,
        group_size=3,
        max_steps=3,
        leftovers=Leftovers.KEEP,
        num_instances=2,
        coordination=coordination,
    )
    world = World(schedule, random.Random(0))
    world.tell(ev.RunStarted(schedule=schedule))
    while any(not isinstance(command, do.Submit) for command in world.open):
        world.now += 1.0
        world.answer(world.take_one())
    return world


def test_a_view_counts_a_command_before_it_is_answered() -> None:
    world = quiet_world()
    state = world.coordinator._state
    view = fleet_view(state, world.schedule, world.now)
    assert [i.num_responses for i in view.instances] == [3, 3]
    assert [i.kv_tokens for i in view.instances] == [6, 6], "prompts count"
    while world.open:
        world.answer(world.take_one())
    first = list(world.running[InstanceId(0)])
    grown = (ev.Progressed(trajectory=first[0], length=30), ev.Progressed(trajectory=first[1], length=5))
    world.tell(ev.RolloutReported(instance=InstanceId(0), version=Version(0), progressed=grown))
    loaded = fleet_view(state, world.schedule, world.now).instances[0]
    assert (loaded.kv_tokens, loaded.num_waiting) == (39, 1), "the third has to wait"
    ended = (ev.Finished(trajectory=first[0], length=31, finish=Finish.STOP),)
    world.tell(ev.RolloutReported(instance=InstanceId(0), version=Version(0), finished=ended))
    loaded = fleet_view(state, world.schedule, world.now).instances[0]
    assert (loaded.num_responses, loaded.kv_tokens, loaded.num_waiting) == (2, 9, 0)


def test_an_interrupt_that_came_too_late_leaves_nothing_owed() -> None:
    """The responses that were to be moved ended by themselves: the answer says so, and the next plan goes on."""
    world = quiet_world(max_waiting=0, plan_interval_s=0.0)
    while world.open:
        world.answer(world.take_one())
    first = list(world.running[InstanceId(0)])
    grown = tuple(ev.Progressed(trajectory=t, length=15) for t in first)
    world.tell(ev.RolloutReported(instance=InstanceId(0), version=Version(0), progressed=grown))
    [interrupt] = [command for command in world.open if isinstance(command, do.Interrupt)]
    assert interrupt.trajectories == (first[2],)
    ended = (ev.Finished(trajectory=first[2], length=16, finish=Finish.LENGTH),)
    world.tell(ev.RolloutReported(instance=InstanceId(0), version=Version(0), finished=ended))
    assert world.coordinator._state.instances[InstanceId(0)].owes_nothing
