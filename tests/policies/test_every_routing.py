"""What the core relies on with every routing strategy, held to each one of the table on random fleets."""

from __future__ import annotations

from collections import Counter
from dataclasses import is_dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.histories import held_to
from policies.random_fleets import fleets, schedules, takers
from tailrace.core.fleet.policy import FleetView, Route, RoutingPolicy
from tailrace.policies.strategies import Routing

every_routing = pytest.mark.parametrize("routing", Routing)


def asked(data: st.DataObject, routing: Routing, *, is_idle: bool = False) -> tuple[FleetView, list[Route]]:
    """A random fleet, and what a policy answers to it."""
    policy: RoutingPolicy = routing.make(data.draw(schedules()))
    seen = data.draw(fleets(has_homes=policy.needs_homes, is_idle=is_idle))
    return seen, list(policy.route(seen))


@every_routing
@held_to(40)
@given(st.data())
def test_a_response_that_waits_is_given_once_to_an_instance_of_the_view(routing: Routing, data: st.DataObject) -> None:
    seen, routes = asked(data, routing)
    waiting = {(group.group, response) for group in seen.queue for response in group.responses}
    routed = [(route.group, response) for route in routes for response, _ in route.places]
    assert len(routed) == len(set(routed)), "a response was routed twice"
    assert set(routed) <= waiting
    assert {number for route in routes for number in route.instances} <= {each.instance for each in seen.instances}
    assert all(route.responses for route in routes), "a route without a response"


@every_routing
@held_to(40)
@given(st.data())
def test_no_instance_gets_more_than_it_may_have(routing: Routing, data: st.DataObject) -> None:
    seen, routes = asked(data, routing)
    given_to = Counter(number for route in routes for number in route.instances)
    for each in seen.instances:
        assert not given_to[each.instance] or each.num_responses + given_to[each.instance] <= each.capacity


@every_routing
@held_to(60)
@given(st.data())
def test_no_response_goes_to_a_version_that_may_not_generate_it(routing: Routing, data: st.DataObject) -> None:
    """And the first member of a new group reserves its place in the ledger before the next group may."""
    seen, routes = asked(data, routing)
    version_of = {each.instance: each.version for each in seen.instances}
    groups, admission = {group.group: group for group in seen.queue}, seen.admission.copy()
    began: dict[object, int] = {}
    for route in routes:
        group = groups[route.group]
        if group.version is None and route.group not in began:
            began[route.group] = version_of[route.instances[0]]
            assert began[route.group] >= seen.oldest_for_new
            assert admission.can_reserve(version_of[route.instances[0]]), "the ledger has no place for the group"
            admission.reserve(version_of[route.instances[0]])
        oldest = began.get(route.group, group.version)
        needs = dict(zip(group.responses, group.needs, strict=True))
        for response, number in route.places:
            assert version_of[number] >= max(oldest, 0 if group.version is None else needs[response])
            assert not group.is_exact or version_of[number] == group.version


@every_routing
@held_to(60)
@given(st.data())
def test_an_idle_fleet_is_given_work_if_it_may_take_any(routing: Routing, data: st.DataObject) -> None:
    """Else the run would stand still: nothing would happen after which the policy is asked again."""
    seen, routes = asked(data, routing, is_idle=True)
    present = {each.instance for each in seen.instances}
    free = [group for group in seen.queue if all(home is None or home in present for home in group.homes)]
    assert routes or not any(takers(seen, group) for group in free)


@every_routing
@held_to(40)
@given(st.data())
def test_a_policy_is_a_function_of_its_view_and_changes_nothing(routing: Routing, data: st.DataObject) -> None:
    policy = routing.make(data.draw(schedules()))
    seen = data.draw(fleets(has_homes=policy.needs_homes))
    free, queue = list(seen.admission.free or ()), list(seen.queue)
    assert list(policy.route(seen)) == list(policy.route(seen))
    assert (list(seen.admission.free or ()), list(seen.queue)) == (free, queue), (
        "the plan changed what it was made from"
    )
    assert is_dataclass(policy)
    assert policy.__dataclass_params__.frozen
