"""What waits goes to instances, as the routing policy says and the ledger admits.

At the start of a run one plan routes every response there is. So whatever concerns a group is done once for all of its
members that go, and whatever concerns an instance once for all it is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tailrace.core import commands as do
from tailrace.core.errors import CoreError
from tailrace.core.fleet import Instance
from tailrace.core.ids import InstanceId
from tailrace.core.moves import stop_waiting
from tailrace.core.policy import Policies, Route
from tailrace.core.schedule import Schedule
from tailrace.core.state import State
from tailrace.core.steering import is_planning
from tailrace.core.trajectory import Trajectory, TrajectoryPhase
from tailrace.core.views import fleet_view

_RUNNING = TrajectoryPhase.RUNNING
_Given = dict[InstanceId, list[Trajectory]]


def dispatch(state: State, schedule: Schedule, policies: Policies, now: float) -> Iterator[do.Command]:
    if not state.pending or not is_planning(state, schedule, schedule.coordination.routing, now):
        return
    view = fleet_view(state, schedule, now)
    if not any(instance.num_responses < instance.capacity for instance in view.instances):
        return
    routes = tuple(policies.routing.route(view))  # every one of them before the state changes that the view shows
    yield from give(state, schedule, routes, now)


def give(state: State, schedule: Schedule, routes: Iterable[Route], now: float) -> Iterator[do.Command]:
    """Follow the routes: one command for each instance, its responses in the order they were routed."""
    given: _Given = {number: [] for number in state.instances}
    for route in routes:
        _give_members(state, schedule, route, given, now)
    for number, trajectories in sorted(given.items()):
        if trajectories:
            yield _submit(state.instances[number], trajectories, now)


def _give_members(state: State, schedule: Schedule, route: Route, given: _Given, now: float) -> None:
    """Members of one group stop waiting; with the first of them the group takes its place in the ledger."""
    group = state.groups[route.group]
    if group.version is None:
        group.version = state.instances[route.instances[0]].version
        state.ledger.reserve(group.id, group.version)
    if state.round is not None and state.round.began_at is None and group.id.source == schedule.train_source:
        state.round.began_at = now
    stop_waiting(state, group.id, len(route.trajectories))
    oldest, members, instances = group.version, group.members, state.instances
    for trajectory_id, number in route.places:
        trajectory = members[trajectory_id]
        newest = trajectory.segments[-1][0] if trajectory.segments else oldest
        version = instances[number].version
        if version < newest:
            raise CoreError(f"{trajectory_id} with tokens of version {newest} cannot go to {instances[number]}")
        trajectory.move(_RUNNING, now=now)
        trajectory.instance = number
        given[number].append(trajectory)


def _submit(instance: Instance, trajectories: list[Trajectory], now: float) -> do.Submit:
    if not instance.accepts_work:
        raise CoreError(f"{trajectories[0].id} cannot go to {instance}, which accepts no work")
    if not instance.running:
        instance.heard_at = now
    instance.running.update(dict.fromkeys([t.id for t in trajectories]))
    instance.num_tokens += sum([t.length for t in trajectories])
    dispatches = tuple([do.Dispatch(t.id, t.length) for t in trajectories])
    return do.Submit(instance=instance.id, dispatches=dispatches)
