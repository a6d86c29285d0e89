"""Which waiting group goes to which instance.

Instances become ready one after the other, when they start and whenever they pull. The first must not take everything:
while others are on their way each is given no more than its share, and the rest waits for them. What a ready instance
finishes makes room again, so one that never comes slows the others down and does not stop them.
"""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.core import commands as do
from tailrace.core.fleet import Instance, InstancePhase
from tailrace.core.groups import Group
from tailrace.core.ids import InstanceId
from tailrace.core.moves import move
from tailrace.core.policy import InstanceView, RoutingPolicy
from tailrace.core.schedule import Schedule
from tailrace.core.state import State
from tailrace.core.trajectory import TrajectoryPhase


def dispatch(state: State, schedule: Schedule, routing: RoutingPolicy, now: float) -> Iterator[do.Command]:
    """Evaluations first, then what was begun before, oldest version first, then what is new."""
    if not state.pending:
        return
    capacity = _capacity(state, schedule)
    able = [i for i in state.instances.values() if i.accepts_work and len(i.running) < capacity]
    if not able:
        return
    batches: dict[InstanceId, list[do.Dispatch]] = {}
    for group in _in_order(state, schedule):
        fitting = [instance for instance in able if _fits(state, schedule, group, instance)]
        views = [InstanceView(instance=i.id, num_running=len(i.running), capacity=capacity) for i in fitting]
        chosen = routing.choose(views) if views else None
        if chosen is not None:
            batches.setdefault(chosen, []).extend(_give(state, schedule, group, state.instances[chosen], now))
        elif group.version is None:
            break  # what is new has the same claim as what is behind it
    for instance in sorted(batches):
        yield do.Submit(instance=instance, dispatches=tuple(batches[instance]))


def _capacity(state: State, schedule: Schedule) -> int:
    """Responses an instance may have at the same time."""
    present = [instance for instance in state.instances.values() if instance.phase is not InstancePhase.ABSENT]
    if all(instance.phase is InstancePhase.READY for instance in present):
        return schedule.max_in_flight
    num_responses = sum(state.pending.values()) + sum(len(instance.running) for instance in present)
    return min(schedule.max_in_flight, -(-num_responses // len(present)))


def _in_order(state: State, schedule: Schedule) -> list[Group]:
    groups = [state.groups[group] for group in state.pending]
    evaluated = [g for g in groups if g.id.source != schedule.train_source]
    if schedule.has_rounds and state.round is None:
        return evaluated
    begun = [g for g in groups if g.id.source == schedule.train_source and g.version is not None]
    begun.sort(key=lambda g: (g.version, g.num_unsettled, g.id))
    return evaluated + begun + [g for g in groups if g.version is None]


def _fits(state: State, schedule: Schedule, group: Group, instance: Instance) -> bool:
    if group.id.source != schedule.train_source:
        return instance.version == group.version
    if state.round is not None and instance.version < state.round.version:
        return False
    if group.version is not None:
        return instance.version >= group.newest_version()
    # With neither rounds nor deadlines only the newest version may begin something new.
    is_fresh = schedule.has_rounds or schedule.is_strict or instance.version == state.published
    return is_fresh and state.ledger.can_reserve(instance.version)


def _give(state: State, schedule: Schedule, group: Group, instance: Instance, now: float) -> Iterator[do.Dispatch]:
    if group.version is None:
        group.version = instance.version
        state.ledger.reserve(group.id, instance.version)
    if state.round is not None and state.round.began_at is None and group.id.source == schedule.train_source:
        state.round.began_at = now
    instance.heard_at = instance.heard_at if instance.running else now
    for trajectory in group.members.values():
        if trajectory.phase is TrajectoryPhase.PENDING:
            yield do.Dispatch(trajectory=trajectory.id, start=trajectory.length)
            move(state, trajectory, TrajectoryPhase.RUNNING, now)
            trajectory.instance = instance.id
            instance.running[trajectory.id] = None
