"""What an instance may be given, who may give it, and how policies see what it has."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from core.histories import I0
from core.world import World
from tailrace.core import commands as do
from tailrace.core.coordination import Coordination
from tailrace.core.coordinator import Coordinator
from tailrace.core.dispatching import _give
from tailrace.core.errors import CoreError
from tailrace.core.fleet import Instance, InstancePhase
from tailrace.core.groups import Group
from tailrace.core.ids import GroupId, InstanceId, TrajectoryId, Version
from tailrace.core.policy import FleetView, Route
from tailrace.core.schedule import Leftovers, Schedule
from tailrace.core.state import State
from tailrace.core.trajectory import Trajectory, TrajectoryPhase
from tailrace.core.views import fleet_view
from tailrace.policies.strategies import policies_of

I1 = InstanceId(1)
GROUP = GroupId("train", 0, 0)
RESPONSE = TrajectoryId(GROUP, 0)
SCHEDULE = Schedule(
    train_source="train",
    batch_size=1,
    group_size=1,
    max_steps=3,
    num_instances=2,
    leftovers=Leftovers.KEEP,
    max_staleness=2,
    coordination=Coordination(prompt_length=2),
)


def two_versions() -> State:
    """Version 1 is published, the second instance still has version 0; one response has five tokens of version 1."""
    state = State.initial(SCHEDULE)
    state.version = state.published = Version(1)
    for number, version in ((I0, 1), (I1, 0)):
        state.instances[number].phase, state.instances[number].version = InstancePhase.READY, Version(version)
    response = Trajectory(id=RESPONSE)
    response.grow(5, Version(1))
    state.groups[GROUP] = Group(id=GROUP, num_needed=1, version=Version(0), members={RESPONSE: response})
    state.groups[GROUP].num_unsettled = state.pending[GROUP] = 1
    return state


def test_an_instance_whose_end_was_asked_for_takes_no_work_and_is_not_counted_on() -> None:
    instance = Instance(id=I0, phase=InstancePhase.READY)
    assert instance.accepts_work
    assert instance.owes_nothing
    instance.is_condemned = True
    assert not instance.accepts_work
    assert not instance.owes_nothing


def test_a_response_does_not_go_on_with_an_older_version() -> None:
    with pytest.raises(CoreError, match=f"{RESPONSE} with tokens of version 1 cannot go to"):
        _give(two_versions(), SCHEDULE, Route(RESPONSE, I1), 0.0)
    state = two_versions()
    assert _give(state, SCHEDULE, Route(RESPONSE, I0), 0.0) == do.Dispatch(trajectory=RESPONSE, start=5)
    assert state.trajectory(RESPONSE).phase is TrajectoryPhase.RUNNING


def test_a_view_has_the_newest_version_and_what_waits_with_its_prompt() -> None:
    view = fleet_view(two_versions(), SCHEDULE, 0.0)
    assert view.newest == 1
    assert not view.claims().has_new, "the only group was begun before"
    [group] = view.queue
    assert [(member.length, member.needs) for member in group.members] == [(7, 1)]


def test_a_view_has_what_an_instance_generates() -> None:
    state = two_versions()
    _give(state, SCHEDULE, Route(RESPONSE, I0), 0.0)
    view = fleet_view(state, SCHEDULE, 0.0)
    [[response]] = [group.members for group in view.running(I0)]
    assert response == (RESPONSE, 7, Version(1))
    assert view.running(I1) == []


class CallsEverybody:
    """A synchronization that does not look at versions."""

    def choose(self, view: FleetView) -> Iterable[InstanceId]:
        return [instance.instance for instance in view.instances]


def test_synchronization_is_asked_only_while_there_is_something_to_pull() -> None:
    """An instance that is called and has nothing to pull would take no work again."""
    schedule = replace(SCHEDULE, num_instances=1)
    world = World(schedule, random.Random(0))
    policies = replace(policies_of(schedule), synchronization=CallsEverybody())
    world.coordinator = Coordinator(schedule, policies=policies)
    assert world.run(max_events=500).is_complete
    pulls = [command for entry in world.entries for command in entry.commands if isinstance(command, do.PullWeights)]
    assert pulls, "nobody was called"
