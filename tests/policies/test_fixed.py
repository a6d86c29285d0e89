"""The router that leaves every response where it began, on views alone."""

from __future__ import annotations

from policies.fleets import begun, instance, new, view
from tailrace.core.fleet.policy import FleetView, WaitingGroup
from tailrace.core.ids import InstanceId
from tailrace.policies.routing.fixed import Fixed


def routed(seen: FleetView) -> dict[int, dict[int, int]]:
    """Prompt by prompt: the instance that each member goes to."""
    found: dict[int, dict[int, int]] = {}
    for route in Fixed().route(seen):
        found.setdefault(route.group.prompt, {}).update({r.member: number for r, number in route.places})
    return found


def at_home(group: WaitingGroup, *homes: int | None) -> WaitingGroup:
    return group._replace(homes=tuple(None if home is None else InstanceId(home) for home in homes))


def test_an_interrupted_response_goes_back_to_its_instance_however_loaded_that_is() -> None:
    fleet = view([instance(0, responses=9), instance(1)], [at_home(begun(0, version=0, members=2), 0, 0)])
    assert routed(fleet) == {0: {0: 0, 1: 0}}


def test_a_response_waits_while_its_instance_pulls_or_has_no_room() -> None:
    queue = [at_home(begun(0, version=0), 2), at_home(begun(1, version=0, members=2), 0, 0)]
    fleet = view([instance(0, responses=7, capacity=8), instance(1)], queue)
    assert routed(fleet) == {1: {0: 0}}, "instance 2 is not in the view, and instance 0 has room for one"


def test_a_response_whose_instance_is_gone_goes_to_the_least_loaded() -> None:
    fleet = view([instance(0, responses=1), instance(1)], [at_home(begun(0, version=0, members=2), 0, None)])
    assert routed(fleet) == {0: {0: 0, 1: 1}}


def test_what_is_new_is_spread_over_what_those_at_home_leave() -> None:
    fleet = view([instance(0), instance(1)], [at_home(begun(0, version=0, members=2), 0, 0), new(1, members=3)])
    assert routed(fleet) == {0: {0: 0, 1: 0}, 1: {0: 1, 1: 1, 2: 0}}


def test_a_response_does_not_go_back_to_an_instance_that_was_restarted_with_an_older_version() -> None:
    fleet = view([instance(0, version=0), instance(1, version=2)], [at_home(begun(0, version=1, needs=2), 0)])
    assert routed(fleet) == {0: {0: 1}}
