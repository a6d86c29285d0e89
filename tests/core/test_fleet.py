"""What an instance may be given, who may give it, and how policies see what it has."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from core.histories import I0
from core.world import World
from tailrace.core import commands as do
from tailrace.core.collection.group_changes import begin
from tailrace.core.collection.rounds import next_round
from tailrace.core.coordinator import Coordinator
from tailrace.core.errors import CoreError
from tailrace.core.fleet.instance import Instance, InstancePhase
from tailrace.core.fleet.policy import Claims, FleetView, Route, WaitingGroup
from tailrace.core.fleet.submitting import dispatch, give
from tailrace.core.fleet.views import fleet_view
from tailrace.core.ids import GroupId, InstanceId, ResponseId, Version
from tailrace.core.ledger.admission import AdmissionRule
from tailrace.core.responses.group import Group
from tailrace.core.responses.response import ResponsePhase
from tailrace.core.rooms import Rooms
from tailrace.core.schedule import Coordination, Leftovers, Schedule
from tailrace.policies.strategies import Routing, policies_of

I1 = InstanceId(1)
GROUP, HELDOUT = GroupId("train", 0, 0), GroupId("heldout", 1, 0)
RESPONSE = ResponseId(GROUP, 0)
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


def two_versions(schedule: Schedule = SCHEDULE) -> Rooms:
    """Version 1 is published, the second instance still has version 0; one response has five tokens of version 1."""
    rooms = Rooms(schedule, policies_of(schedule))
    rooms.training.version = rooms.training.published = Version(1)
    for number, version in ((I0, 1), (I1, 0)):
        rooms.fleet.instances[number].phase, rooms.fleet.instances[number].version = (
            InstancePhase.READY,
            Version(version),
        )
    rooms.responses.groups[GROUP] = begun(GROUP, version=0)
    rooms.responses.groups[GROUP].members[RESPONSE].grow(5, Version(1))
    rooms.responses.pending[GROUP] = 1
    return rooms


def begun(number: GroupId, *, version: int, size: int = 1) -> Group:
    """A group whose members have no tokens yet."""
    group = Group(id=number, num_needed=size, version=Version(version), is_training=number.source == "train")
    group.begin(size)
    return group


def test_an_instance_whose_end_was_asked_for_takes_no_work_and_is_not_counted_on() -> None:
    instance = Instance(id=I0, phase=InstancePhase.READY)
    assert instance.accepts_work
    assert instance.owes_nothing
    instance.is_being_killed = True
    assert not instance.accepts_work
    assert not instance.owes_nothing


def test_a_response_does_not_go_on_with_an_older_version() -> None:
    with pytest.raises(CoreError, match=f"{RESPONSE} with tokens of version 1 cannot go to"):
        list(give(two_versions(), [Route(GROUP, [RESPONSE], [I1])], 0.0))
    rooms = two_versions()
    [submit] = give(rooms, [Route(GROUP, [RESPONSE], [I0])], 0.0)
    assert submit == do.Submit(instance=I0, dispatches=(do.Dispatch(response=RESPONSE, start=5),))
    assert rooms.responses.response(RESPONSE).phase is ResponsePhase.RUNNING


def test_what_is_routed_takes_its_place_once_and_is_handed_over_in_the_order_it_was_routed() -> None:
    rooms = two_versions(replace(SCHEDULE, group_size=4))
    rooms.responses.pending.clear()
    rooms.responses.groups.clear()
    begin(rooms, GROUP, "")
    first, second, third, _ = rooms.responses.groups[GROUP].members
    instance = rooms.fleet.instances[I0]
    instance.heard_at = 1.0
    submits = list(give(rooms, [Route(GROUP, [second, first, third], [I1, I0, I0])], 5.0))
    handed = {submit.instance: [each.response for each in submit.dispatches] for submit in submits}
    assert list(handed.items()) == [(I0, [first, third]), (I1, [second])]
    assert rooms.responses.groups[GROUP].version == rooms.collection.ledger.version_of(GROUP) == 0, (
        "the first went to an instance of it"
    )
    assert rooms.responses.pending == {GROUP: 1}
    assert list(instance.running) == [first, third]
    assert instance.heard_at == 5.0, "it was idle"
    *_, last = rooms.responses.groups[GROUP].members
    list(give(rooms, [Route(GROUP, [last], [I0])], 9.0))
    assert instance.heard_at == 5.0, "it was not"
    assert not rooms.responses.pending


def test_an_instance_that_accepts_no_work_is_given_none() -> None:
    rooms = two_versions()
    rooms.fleet.instances[I0].is_draining = True
    with pytest.raises(CoreError, match=f"{RESPONSE} cannot go to .* which accepts no work"):
        list(give(rooms, [Route(GROUP, [RESPONSE], [I0])], 0.0))


class CountsQuestions:
    """A routing that gives nothing to anybody."""

    is_planned = needs_homes = False
    num_asked = 0

    def route(self, view: FleetView) -> Iterable[Route]:
        self.num_asked += 1
        return []


def test_routing_is_asked_only_while_something_waits_and_an_instance_may_take_more() -> None:
    schedule = replace(SCHEDULE, num_instances=1, group_size=2, max_in_flight=1)
    rooms, routing = Rooms(schedule, policies_of(schedule)), CountsQuestions()
    rooms.policies = replace(rooms.policies, routing=routing)
    rooms.fleet.instances[I0].phase = InstancePhase.READY
    list(dispatch(rooms, 0.0))
    assert routing.num_asked == 0, "nothing waits"
    begin(rooms, GROUP, "")
    list(dispatch(rooms, 0.0))
    assert routing.num_asked == 1
    list(give(rooms, [Route(GROUP, [RESPONSE], [I0])], 0.0))
    list(dispatch(rooms, 0.0))
    assert routing.num_asked == 1, "it has as many as it may"


def test_a_round_begins_when_its_first_response_does_whatever_is_evaluated_before() -> None:
    schedule = replace(SCHEDULE, leftovers=Leftovers.WAIT)
    rooms = two_versions(schedule)
    rooms.collection.round = next_round(rooms)
    assert rooms.collection.round is not None
    rooms.responses.groups[HELDOUT] = begun(HELDOUT, version=1)
    list(give(rooms, [Route(HELDOUT, [ResponseId(HELDOUT, 0)], [I0])], 1.0))
    assert rooms.collection.round.began_at is None
    list(give(rooms, [Route(GROUP, [RESPONSE], [I0])], 2.0))
    assert rooms.collection.round.began_at == 2.0


def test_a_route_has_an_instance_for_each_of_its_responses() -> None:
    two = [RESPONSE, ResponseId(GROUP, 1)]
    assert list(Route(GROUP, two, [I0, I1]).places) == [(two[0], I0), (two[1], I1)]
    with pytest.raises(ValueError, match="shorter"):
        list(Route(GROUP, two, [I0]).places)


def test_a_waiting_group_without_those_that_went_is_what_is_left_of_it() -> None:
    responses = tuple(ResponseId(GROUP, member) for member in range(3))
    group = WaitingGroup(GROUP, None, responses, (7, 8, 9), (Version(0),) * 3)
    left = group.without({responses[1]}, Version(2))
    assert left == WaitingGroup(GROUP, Version(2), responses[::2], (7, 9), (Version(0),) * 2)
    assert group.without(responses, Version(2)) is None


def test_a_view_has_the_newest_version_and_what_waits_with_its_prompt() -> None:
    view = fleet_view(two_versions(), 0.0)
    assert view.newest == 1
    assert not view.backlog.claims().has_new, "the only group was begun before"
    [group] = view.queue
    assert [(length, needs) for _, length, needs in group.members] == [(7, 1)]
    assert view.backlog.claims() == Claims.of([group])


def test_the_newest_version_of_a_view_is_the_published_one_only_if_an_instance_holds_or_is_to_pull_it() -> None:
    rooms = two_versions()
    rooms.training.version = rooms.training.published = Version(3)
    behind = rooms.fleet.instances[I1]
    assert fleet_view(rooms, 0.0).newest == 1, "nobody pulls"
    behind.is_draining = True
    assert fleet_view(rooms, 0.0).newest == 3
    behind.is_draining, behind.phase = False, InstancePhase.PULLING
    assert fleet_view(rooms, 0.0).newest == 3


def test_an_instance_that_leaves_the_fleet_is_left_no_share_of_the_work() -> None:
    rooms = two_versions(replace(SCHEDULE, max_in_flight=9))
    rooms.responses.groups[GROUP], rooms.responses.pending[GROUP] = begun(GROUP, version=0, size=4), 4
    other = rooms.fleet.instances[I1]
    other.phase = InstancePhase.STARTING
    [view] = fleet_view(rooms, 0.0).instances
    assert view.capacity == 2, "half of what waits is for the instance that starts"
    other.is_retiring = True
    [view] = fleet_view(rooms, 0.0).instances
    assert view.capacity == 9


@pytest.mark.parametrize("routing", Routing)
def test_what_waits_names_its_instance_only_where_routing_needs_it(routing: Routing) -> None:
    rooms = two_versions(replace(SCHEDULE, coordination=Coordination(routing=routing.value)))
    rooms.responses.response(RESPONSE).home = I0
    [group] = fleet_view(rooms, 0.0).queue
    assert group.homes == ((I0,) if rooms.policies.routing.needs_homes else ())
    assert rooms.policies.routing.needs_homes or routing is not Routing.FIXED


def test_a_view_has_evaluations_first_then_the_oldest_version_and_what_is_new_last() -> None:
    rooms = two_versions()
    new, late, later, quick, old = (GroupId("train", 0, prompt) for prompt in range(1, 6))
    begin(rooms, new, "")
    for number, version, size in ((later, 1, 2), (late, 1, 2), (quick, 1, 1), (old, 0, 3), (HELDOUT, 1, 1)):
        rooms.responses.groups[number], rooms.responses.pending[number] = (
            begun(number, version=version, size=size),
            size,
        )
    view = fleet_view(rooms, 0.0)
    queue = list(view.queue)
    assert [group.group for group in queue] == [HELDOUT, GROUP, old, quick, late, later, new]
    assert view.backlog.claims() == Claims.of(queue)


@pytest.mark.parametrize(("admission", "oldest"), [(AdmissionRule.DEADLINE, 0), (AdmissionRule.COUNT, 1)])
def test_without_deadlines_only_the_newest_version_may_begin_something(admission: AdmissionRule, oldest: int) -> None:
    schedule = replace(SCHEDULE, admission=admission)
    assert fleet_view(two_versions(schedule), 0.0).oldest_for_new == oldest


def test_what_waits_lets_in_who_may_take_some_of_it() -> None:
    claims = Claims(exact=frozenset({Version(2)}), least_needed=Version(4))
    assert [version for version in range(6) if claims.lets_in(Version(version), may_begin=True)] == [2, 4, 5]
    new = Claims(has_new=True)
    assert new.lets_in(Version(0), may_begin=True)
    assert not new.lets_in(Version(0), may_begin=False)


def test_a_view_has_what_an_instance_generates() -> None:
    rooms = two_versions()
    list(give(rooms, [Route(GROUP, [RESPONSE], [I0])], 0.0))
    view = fleet_view(rooms, 0.0)
    [[response]] = [group.members for group in view.backlog.running(I0)]
    assert response == (RESPONSE, 7, Version(1))
    assert view.backlog.running(I1) == []


class CallsEverybody:
    """A synchronization that does not look at versions."""

    is_planned = False

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
