"""What must hold after every event. ``check`` raises AssertionError if any two collections disagree."""

from __future__ import annotations

from tailrace.core.fleet import InstancePhase
from tailrace.core.groups import Group, GroupPhase
from tailrace.core.ids import TrajectoryId
from tailrace.core.schedule import Schedule
from tailrace.core.state import State
from tailrace.core.trajectory import TrajectoryPhase


def check(state: State, schedule: Schedule) -> None:
    for group in state.groups.values():
        group.check()
    for instance in state.instances.values():
        instance.check()
    state.ledger.check()
    _check_trajectories(state)
    train = [g for g in state.groups.values() if g.id.source == schedule.train_source]
    _check_training_groups(state, schedule, train)
    _check_bound(state, schedule, train)
    _check_versions(state, schedule)
    _check_evaluation(state, schedule)


def _check_trajectories(state: State) -> None:
    by_phase: dict[TrajectoryPhase, set[TrajectoryId]] = {phase: set() for phase in TrajectoryPhase}
    for trajectory in state.trajectories():
        by_phase[trajectory.phase].add(trajectory.id)
    waiting = [t for t in by_phase[TrajectoryPhase.PENDING] if state.groups[t.group].phase is GroupPhase.OPEN]
    assert state.pending == {g: sum(t.group == g for t in waiting) for g in {t.group for t in waiting}}
    assert set(state.generated) == by_phase[TrajectoryPhase.GENERATED]
    assert set(state.scoring) == by_phase[TrajectoryPhase.SCORING]
    running = {t: i.id for i in state.instances.values() for t in i.running}
    assert set(running) == by_phase[TrajectoryPhase.RUNNING]
    assert all(state.trajectory(t).instance == instance for t, instance in running.items())
    for instance in state.instances.values():
        assert instance.num_tokens == sum(state.trajectory(t).length for t in instance.running)
    live = {t for ids in by_phase.values() for t in ids}
    forgotten = {t for i in state.instances.values() for t in i.aborting} | set(state.cancelled)
    assert not live & forgotten, "a response that was given up is still here"
    assert not state.surplus or state.verdict is not None


def _check_training_groups(state: State, schedule: Schedule, train: list[Group]) -> None:
    by_phase = {phase: {g.id for g in train if g.phase is phase} for phase in GroupPhase}
    live = by_phase[GroupPhase.OPEN] | by_phase[GroupPhase.COMPLETE]
    assert len(live) == state.num_train_groups
    assert set(state.complete) | set(state.finished) == by_phase[GroupPhase.COMPLETE]
    assert set(state.queue) == by_phase[GroupPhase.DEFERRED]
    taken = [group for batch in state.batches for group in batch]
    assert set(taken) == by_phase[GroupPhase.TAKEN]
    assert sum(len(ids) for ids in by_phase.values()) == len(live) + len(taken) + len(state.queue)
    assert not set(state.held) & set(state.groups)
    if state.round is not None:
        assert state.round.number == state.ledger.current
        assert state.num_train_groups <= state.round.size
        assert not (state.round.is_long and len(state.queue) >= schedule.num_launched)


def _check_bound(state: State, schedule: Schedule, train: list[Group]) -> None:
    """The ledger knows exactly the groups that were given to an instance and are not taken or deferred."""
    begun = {g.id for g in train if g.phase in (GroupPhase.OPEN, GroupPhase.COMPLETE) and g.version is not None}
    assert set(state.ledger) == begun
    assert {g for g in state.ledger if state.ledger.is_occupied(g)} == set(state.complete)
    assert state.ledger.current == state.version + len(state.batches)
    for group in begun:
        assert state.groups[group].version is not None
        assert state.ledger.version_of(group) >= (state.groups[group].version or 0)


def _check_versions(state: State, schedule: Schedule) -> None:
    assert state.published <= state.version <= schedule.max_steps
    assert state.training is None or state.batches
    assert state.publishing is None or state.publishing.version == state.version
    for instance in state.instances.values():
        # After a restart the weights are published again; until then an instance holds what it started with. What is
        # being published may be pulled before the news of it is here.
        newest = max(state.published, 0) if state.publishing is None else state.publishing.version
        assert instance.phase is InstancePhase.ABSENT or instance.version <= newest
    for group in state.groups.values():
        assert group.version is None or group.version <= state.version
        for trajectory in group.members.values():
            if trajectory.instance is not None and group.version is not None:
                assert state.instances[trajectory.instance].version >= group.version


def _check_evaluation(state: State, schedule: Schedule) -> None:
    for name, num_open in state.eval_open.items():
        groups = [g for g in state.groups.values() if g.id.source == name and g.phase is GroupPhase.OPEN]
        assert len(groups) == num_open or name in state.prompts
