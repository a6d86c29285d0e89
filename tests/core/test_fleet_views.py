"""What a view tells policies about instances that are not ready, and about the instances responses were on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.histories import I0
from core.test_fleet import GROUP, HELDOUT, I1, RESPONSE, SCHEDULE, begun, two_versions
from tailrace.core.collection.rounds import next_round
from tailrace.core.fleet.instance import Instance, InstancePhase
from tailrace.core.fleet.policy import Claims
from tailrace.core.fleet.views import fleet_view
from tailrace.core.ids import GroupId, InstanceId, Version
from tailrace.core.rooms import Rooms
from tailrace.core.schedule import Coordination, Leftovers

FIXED = replace(SCHEDULE, coordination=Coordination(routing="fixed"))


def home(rooms: Rooms) -> InstanceId | None:
    """Where the only queued response was last, as routing is told."""
    [group] = fleet_view(rooms, 0.0).queue
    [found] = group.homes
    return found


@pytest.mark.parametrize("phase", InstancePhase)
def test_a_response_returns_to_its_instance_unless_that_is_gone_or_starts_anew(phase: InstancePhase) -> None:
    rooms = two_versions(FIXED)
    rooms.responses.response(RESPONSE).home = I1
    rooms.fleet.instances[I1].phase = phase
    is_gone = phase in (InstancePhase.ABSENT, InstancePhase.STARTING, InstancePhase.STOPPING)
    assert home(rooms) == (None if is_gone else I1)


@pytest.mark.parametrize("fate", ["is_retiring", "is_being_killed"])
def test_a_response_does_not_wait_for_an_instance_that_is_about_to_go(fate: str) -> None:
    rooms = two_versions(FIXED)
    rooms.responses.response(RESPONSE).home = I1
    setattr(rooms.fleet.instances[I1], fate, True)
    assert home(rooms) is None


def test_a_response_that_was_nowhere_has_no_home() -> None:
    assert home(two_versions(FIXED)) is None


def waiting(rooms: Rooms, number: GroupId, *, size: int, version: int = 0) -> None:
    """So many members of a group wait; it has begun with this version."""
    rooms.responses.groups[number] = begun(number, version=version, size=size)
    rooms.responses.pending[number] = size


@pytest.mark.parametrize(
    ("phase", "is_draining", "capacity"),
    [
        (InstancePhase.STARTING, False, 3),
        (InstancePhase.PULLING, False, 3),
        (InstancePhase.READY, True, 3),
        (InstancePhase.READY, False, 9),
        (InstancePhase.ABSENT, False, 9),
    ],
)
def test_work_is_left_for_instances_that_will_be_ready_soon(
    phase: InstancePhase, is_draining: bool, capacity: int
) -> None:
    """Five responses for two instances: the ready one gets at most three while the other starts, pulls or drains."""
    rooms = two_versions(replace(SCHEDULE, max_in_flight=9))
    waiting(rooms, GROUP, size=5)
    rooms.fleet.instances[I1].phase, rooms.fleet.instances[I1].is_draining = phase, is_draining
    assert fleet_view(rooms, 0.0).instances[0].capacity == capacity


def test_an_instance_of_an_older_version_has_no_share_and_may_be_filled() -> None:
    """Only instances of the published version share what waits for it."""
    rooms = two_versions(replace(SCHEDULE, max_in_flight=9))
    waiting(rooms, GROUP, size=4)
    rooms.fleet.add(Instance(id=InstanceId(2), phase=InstancePhase.STARTING))
    assert {view.instance: view.capacity for view in fleet_view(rooms, 0.0).instances} == {I0: 2, I1: 9}


def test_responses_that_run_on_those_that_share_count_too() -> None:
    rooms = two_versions(replace(SCHEDULE, max_in_flight=9))
    waiting(rooms, GROUP, size=2)
    rooms.fleet.instances[I1].phase = InstancePhase.STARTING
    rooms.fleet.instances[I0].running = dict.fromkeys(begun(HELDOUT, version=1, size=4).members)
    [view] = fleet_view(rooms, 0.0).instances
    assert (view.num_responses, view.capacity) == (4, 3)


def test_evaluations_are_generated_by_their_version_only_and_also_between_rounds() -> None:
    rooms = two_versions(replace(SCHEDULE, leftovers=Leftovers.WAIT))
    waiting(rooms, HELDOUT, size=2, version=1)
    view = fleet_view(rooms, 0.0)
    [group] = view.queue
    assert (group.group, group.version, group.is_exact) == (HELDOUT, 1, True)
    assert view.oldest_for_new > 1, "no group begins between two rounds"
    rooms.collection.round = next_round(rooms)
    assert [(each.group, each.is_exact) for each in fleet_view(rooms, 0.0).queue] == [(HELDOUT, True), (GROUP, False)]
    assert fleet_view(rooms, 0.0).oldest_for_new == 1, "the version that the round asks for"


def test_a_response_goes_on_with_the_version_of_its_newest_token_or_of_the_round() -> None:
    rooms = two_versions(replace(SCHEDULE, leftovers=Leftovers.RESUME, max_steps=9))
    rooms.training.version = rooms.training.published = Version(3)
    rooms.collection.ledger.current = 3
    rooms.collection.round = next_round(rooms)
    [group] = fleet_view(rooms, 0.0).queue
    assert group.needs == (3,), "the round asks for more than its tokens do"
    rooms.collection.round.version = Version(0)
    [group] = fleet_view(rooms, 0.0).queue
    assert group.needs == (1,), "its newest tokens are of version 1"


def test_a_response_without_tokens_goes_on_with_the_version_of_its_group_or_a_newer_one() -> None:
    rooms = two_versions()
    waiting(rooms, GROUP, size=2, version=1)
    [group] = fleet_view(rooms, 0.0).queue
    assert group.needs == (1, 1)


def test_a_queue_of_evaluations_and_begun_groups_claims_the_versions_of_both() -> None:
    rooms = two_versions()
    waiting(rooms, HELDOUT, size=1, version=1)
    waiting(rooms, GROUP, size=1, version=0)
    expected = Claims(exact=frozenset({Version(1)}), least_needed=Version(0), most_needed=Version(1))
    assert fleet_view(rooms, 0.0).backlog.claims() == expected
