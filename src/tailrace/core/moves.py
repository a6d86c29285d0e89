"""Changes of state that facts and decisions share; each keeps the indexes in step with the phases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tailrace.core import commands as do
from tailrace.core.groups import Group, GroupPhase
from tailrace.core.ids import GroupId, InstanceId, TrajectoryId
from tailrace.core.rounds import num_members
from tailrace.core.schedule import Schedule
from tailrace.core.state import State
from tailrace.core.trajectory import Trajectory, TrajectoryPhase


def move(state: State, trajectory: Trajectory, new: TrajectoryPhase, now: float) -> None:
    _leave(state, trajectory)
    trajectory.move(new, now=now)
    match new:
        case TrajectoryPhase.PENDING:
            _wait(state, trajectory)
        case TrajectoryPhase.GENERATED:
            state.generated[trajectory.id] = None
        case TrajectoryPhase.SCORING:
            state.scoring[trajectory.id] = None


def _wait(state: State, trajectory: Trajectory) -> None:
    group = state.groups[trajectory.id.group]
    if group.phase is GroupPhase.OPEN:
        state.pending[group.id] = state.pending.get(group.id, 0) + 1


def _leave(state: State, trajectory: Trajectory) -> None:
    """Take it out of the index of its phase."""
    match trajectory.phase:
        case TrajectoryPhase.PENDING:
            stop_waiting(state, trajectory.id.group, 1)
        case TrajectoryPhase.RUNNING:
            assert trajectory.instance is not None
            instance = state.instances[trajectory.instance]
            del instance.running[trajectory.id]
            instance.num_tokens -= trajectory.length
            instance.stopping.pop(trajectory.id, None)
            trajectory.instance = None
        case TrajectoryPhase.GENERATED:
            del state.generated[trajectory.id]
        case TrajectoryPhase.SCORING:
            del state.scoring[trajectory.id]


def stop_waiting(state: State, group: GroupId, count: int) -> None:
    """So many of its members go to instances, or are given up."""
    if group in state.pending:  # those of a deferred group are not there
        state.pending[group] -= count
        if not state.pending[group]:
            del state.pending[group]


def begin(state: State, schedule: Schedule, group_id: GroupId, domain: str) -> None:
    """A training prompt becomes a group."""
    group = Group(id=group_id, num_needed=schedule.group_size, domain=domain)
    group.begin(num_members(schedule, state.round))
    admit(state, group)


def begin_again(state: State, schedule: Schedule, group: Group) -> None:
    """An open group whose members were taken away gets new ones."""
    group.begin(num_members(schedule, state.round))
    for trajectory in group.members.values():
        _wait(state, trajectory)


def admit(state: State, group: Group) -> None:
    """A training group begins, or begins again; it is open, and its members are what it goes on with."""
    state.groups[group.id] = group
    state.num_train_groups += 1
    for trajectory in group.members.values():
        if trajectory.phase is TrajectoryPhase.PENDING:
            _wait(state, trajectory)


def set_aside(state: State, group: Group, now: float) -> None:
    """A training group waits in the long queue."""
    group.move(GroupPhase.DEFERRED, now=now)
    leave_ledger(state, group)
    state.pending.pop(group.id, None)
    state.complete.pop(group.id, None)
    state.num_train_groups -= 1
    state.queue[group.id] = None


def let_go(state: State, trajectories: Iterable[Trajectory]) -> Iterator[do.Command]:
    """Give responses up: whatever is being done for them is called off."""
    aborted: dict[InstanceId, list[TrajectoryId]] = {}
    cancelled: list[TrajectoryId] = []
    for trajectory in trajectories:
        instance = trajectory.instance
        _leave(state, trajectory)
        if trajectory.phase is TrajectoryPhase.RUNNING:
            assert instance is not None
            aborted.setdefault(instance, []).append(trajectory.id)
            state.instances[instance].aborting[trajectory.id] = None
        elif trajectory.phase is TrajectoryPhase.SCORING:
            cancelled.append(trajectory.id)
            state.cancelled[trajectory.id] = None
    for instance in sorted(aborted):
        yield do.Abort(instance=instance, trajectories=tuple(aborted[instance]))
    if cancelled:
        yield do.CancelScores(trajectories=tuple(cancelled))


def leave_ledger(state: State, group: Group) -> None:
    if group.id in state.ledger:
        state.ledger.delete(group.id)


def drop(state: State, group: Group, phase: GroupPhase, now: float) -> None:
    """A training group leaves without being trained."""
    group.move(phase, now=now)
    leave_ledger(state, group)
    del state.groups[group.id]
    state.complete.pop(group.id, None)
    state.num_train_groups -= 1
