"""Sends queued responses to instances, as the routing policy chooses and the ledger admits.

The first plan of a run routes every response. To keep it fast, work that concerns a group is done once for all its
routed members, and work that concerns an instance once for all its new responses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tailrace.core import commands as do
from tailrace.core.errors import CoreError
from tailrace.core.fleet.instance import Instance
from tailrace.core.fleet.policy import Route
from tailrace.core.fleet.views import fleet_view
from tailrace.core.ids import InstanceId
from tailrace.core.responses.response import Response, ResponsePhase
from tailrace.core.rooms import Rooms

_RUNNING = ResponsePhase.RUNNING
_Given = dict[InstanceId, list[Response]]


def dispatch(rooms: Rooms, now: float) -> Iterator[do.Command]:
    if not rooms.responses.has_waiting:
        return
    view = fleet_view(rooms, now)
    if not any(instance.num_responses < instance.capacity for instance in view.instances):
        return
    routes = tuple(rooms.policies.routing.route(view))  # complete the routing before the state behind the view changes
    yield from give(rooms, routes, now)


def give(rooms: Rooms, routes: Iterable[Route], now: float) -> Iterator[do.Command]:
    """Send routed responses to their instances: one command per instance, with its responses in routing order."""
    given: _Given = {number: [] for number in rooms.fleet.instances}
    for route in routes:
        _give_members(rooms, route, given, now)
    for number, responses in sorted(given.items()):
        if responses:
            yield _submit(rooms.fleet.instances[number], responses, now)


def _give_members(rooms: Rooms, route: Route, given: _Given, now: float) -> None:
    """Remove members of one group from the queue. The first member of a group reserves its slot in the ledger."""
    group, instances = rooms.responses.group(route.group), rooms.fleet.instances
    if group.version is None:
        group.version = instances[route.instances[0]].version
        rooms.collection.group_began(group, group.version)
    if group.is_training:
        rooms.collection.round_began(now)
    rooms.responses.stop_waiting(group.id, len(route.responses))
    oldest, members = group.version, group.members
    for response_id, number in route.places:
        response = members[response_id]
        newest = response.segments[-1][0] if response.segments else oldest
        if instances[number].version < newest:
            raise CoreError(f"{response_id} with tokens of version {newest} cannot go to {instances[number]}")
        response.move(_RUNNING, now=now)
        response.instance = response.home = number
        given[number].append(response)


def _submit(instance: Instance, responses: list[Response], now: float) -> do.Submit:
    if not instance.accepts_work:
        raise CoreError(f"{responses[0].id} cannot go to {instance}, which accepts no work")
    if not instance.running:
        instance.heard_at = instance.progressed_at = now
    instance.take(responses)
    dispatches = tuple([do.Dispatch(r.id, r.length) for r in responses])
    return do.Submit(instance=instance.id, dispatches=dispatches)
