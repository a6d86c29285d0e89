"""What waits goes to instances, as the routing policy says and the ledger admits."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.core import commands as do
from tailrace.core.errors import CoreError
from tailrace.core.ids import InstanceId
from tailrace.core.moves import move
from tailrace.core.policy import Policies, Route
from tailrace.core.schedule import Schedule
from tailrace.core.state import State
from tailrace.core.steering import is_planning
from tailrace.core.trajectory import TrajectoryPhase
from tailrace.core.views import fleet_view


def dispatch(state: State, schedule: Schedule, policies: Policies, now: float) -> Iterator[do.Command]:
    if not state.pending or not is_planning(state, schedule, schedule.coordination.routing, now):
        return
    view = fleet_view(state, schedule, now)
    if not any(instance.num_responses < instance.capacity for instance in view.instances):
        return
    batches: dict[InstanceId, list[do.Dispatch]] = {}
    for route in tuple(policies.routing.route(view)):
        batches.setdefault(route.instance, []).append(_give(state, schedule, route, now))
    for instance in sorted(batches):
        yield do.Submit(instance=instance, dispatches=tuple(batches[instance]))


def _give(state: State, schedule: Schedule, route: Route, now: float) -> do.Dispatch:
    trajectory, instance = state.trajectory(route.trajectory), state.instances[route.instance]
    group = state.groups[trajectory.id.group]
    if group.version is None:
        group.version = instance.version
        state.ledger.reserve(group.id, instance.version)
    if state.round is not None and state.round.began_at is None and group.id.source == schedule.train_source:
        state.round.began_at = now
    newest = trajectory.segments[-1][0] if trajectory.segments else group.version
    if instance.version < max(group.version, newest) or not instance.accepts_work:
        raise CoreError(f"{trajectory.id} with tokens of version {newest} cannot go to {instance}")
    instance.heard_at = instance.heard_at if instance.running else now
    move(state, trajectory, TrajectoryPhase.RUNNING, now)
    trajectory.instance = instance.id
    instance.running[trajectory.id] = None
    instance.num_tokens += trajectory.length
    return do.Dispatch(trajectory=trajectory.id, start=trajectory.length)
