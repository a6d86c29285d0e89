"""Facts change the state; nothing is decided here. One function per event, one table to find it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailrace.core import events as ev
from tailrace.core.errors import CoreError
from tailrace.core.fleet import InstancePhase
from tailrace.core.groups import Group, GroupPhase
from tailrace.core.ids import GroupId, InstanceId, Version
from tailrace.core.moves import begin, leave_ledger, move
from tailrace.core.outcomes import Outcome
from tailrace.core.rounds import unfinished_visits
from tailrace.core.schedule import Leftovers, Schedule
from tailrace.core.state import State
from tailrace.core.trajectory import Finish, TrajectoryPhase


def absorb(state: State, schedule: Schedule, event: ev.Event, now: float) -> None:
    try:
        handler = _HANDLERS[type(event)]
    except KeyError:
        raise TypeError(f"unknown event {event!r}") from None
    handler(state, schedule, event, now)


def _run_started(state: State, schedule: Schedule, event: ev.RunStarted, now: float) -> None:
    if state.has_begun:
        raise CoreError("a run starts once")
    state.has_begun = True
    state.limits = event.schedule.limits


def _run_resumed(state: State, schedule: Schedule, event: ev.RunResumed, now: float) -> None:
    """Everything in flight is gone: put each thing back to where it can be asked for again."""
    for instance in state.instances.values():
        if instance.phase is not InstancePhase.ABSENT:
            _lose(state, instance.id, now)
        instance.num_restarts = 0
    for trajectory in list(state.scoring):
        move(state, state.trajectory(trajectory), TrajectoryPhase.GENERATED, now)
    state.cancelled.clear()
    state.trainer, state.is_trainer_asked = None, False
    state.training = state.publishing = state.saving = None
    for source in state.prompts:
        state.eval_open.pop(source, None)
    state.prompts.clear()
    state.published = Version(0 if state.version == 0 else -1)
    if state.save_due not in (None, state.version) or state.save_due == event.checkpoint:
        state.save_due = None  # it is on disk, or too late: the trainer holds a later version
    state.num_dropped_in_a_row = state.num_failed_in_a_row = state.num_reliefs_in_a_row = 0
    state.limits = event.limits
    state.timer_at = state.plan_at = state.verdict = None


def _stop_requested(state: State, schedule: Schedule, event: ev.StopRequested, now: float) -> None:
    state.verdict = event.reason


def _prompts_offered(state: State, schedule: Schedule, event: ev.PromptsOffered, now: float) -> None:
    del state.prompts[event.source]
    ids = [GroupId(event.source, epoch, prompt) for epoch, prompt in event.prompts]
    if event.source != schedule.train_source:
        _open_evaluation(state, schedule, ids)
        return
    state.cursor = (event.next_epoch, event.next_offset)
    visited = unfinished_visits(state, schedule)
    for group, domain in zip(ids, event.domains or [""] * len(ids), strict=True):
        if group in state.groups:
            raise CoreError(f"group {group} was offered twice")
        if group.prompt in visited:
            state.held[group] = domain
        else:
            begin(state, schedule, group, domain)
            visited |= {group.prompt} if schedule.leftovers is Leftovers.DEFER else set()


def _open_evaluation(state: State, schedule: Schedule, ids: list[GroupId]) -> None:
    for group_id in ids:
        size = next(s.group_size for s in schedule.eval_sets if s.name == group_id.source)
        group = Group(id=group_id, num_needed=size, version=state.version)
        group.begin(size)
        state.groups[group_id] = group
        state.pending[group_id] = size


def _instance_started(state: State, schedule: Schedule, event: ev.InstanceStarted, now: float) -> None:
    instance = state.instance(event.instance)
    instance.move(InstancePhase.READY, now=now)
    instance.version = event.version


def _instance_lost(state: State, schedule: Schedule, event: ev.InstanceLost, now: float) -> None:
    instance = state.instance(event.instance)
    _lose(state, event.instance, now)
    instance.last_loss = event.reason
    instance.num_restarts += 1


def _lose(state: State, number: InstanceId, now: float) -> None:
    instance = state.instance(number)
    for trajectory in list(instance.running):
        move(state, state.trajectory(trajectory), TrajectoryPhase.PENDING, now)
    instance.aborting.clear()
    instance.move(InstancePhase.ABSENT, now=now)
    instance.version = Version(0)
    instance.is_condemned = False
    instance.moved_at = None


def _rollout_reported(state: State, schedule: Schedule, event: ev.RolloutReported, now: float) -> None:
    instance = state.instance(event.instance)
    instance.heard_at = now
    for progress in event.progressed:
        if progress.trajectory not in instance.aborting:
            instance.num_tokens += state.trajectory(progress.trajectory).grow(progress.length, event.version)
    for finished in event.finished:
        if finished.trajectory in instance.aborting:
            continue
        trajectory = state.trajectory(finished.trajectory)
        instance.num_tokens += trajectory.grow(finished.length, event.version)
        if finished.finish is Finish.INTERRUPTED:
            move(state, trajectory, TrajectoryPhase.PENDING, now)
        else:
            trajectory.finish = finished.finish
            move(state, trajectory, TrajectoryPhase.GENERATED, now)


def _costs_measured(state: State, schedule: Schedule, event: ev.CostsMeasured, now: float) -> None:
    state.costs = event.costs


def _responses_aborted(state: State, schedule: Schedule, event: ev.ResponsesAborted, now: float) -> None:
    instance = state.instance(event.instance)
    instance.heard_at = now
    for aborted in event.aborted:
        instance.aborting.pop(aborted.trajectory, None)


def _responses_scored(state: State, schedule: Schedule, event: ev.ResponsesScored, now: float) -> None:
    state.scored_at = now
    for scored in event.scores:
        if scored.trajectory in state.cancelled:
            del state.cancelled[scored.trajectory]
        elif scored.trajectory in state.surplus:
            del state.surplus[scored.trajectory], state.scoring[scored.trajectory]
        else:
            _scored(state, schedule, scored, now)


def _scored(state: State, schedule: Schedule, scored: ev.Scored, now: float) -> None:
    trajectory = state.trajectory(scored.trajectory)
    has_failed = scored.outcome is not Outcome.OK
    trajectory.outcome = scored.outcome
    trajectory.score = 0.0 if has_failed else scored.score
    if has_failed:
        state.last_reward_failure = f"{scored.outcome.value}: {scored.detail}"
    is_training = trajectory.id.group.source == schedule.train_source
    if is_training:
        state.num_failed_in_a_row = state.num_failed_in_a_row + 1 if has_failed else 0
    is_dropped = has_failed and is_training and schedule.drops_failed_rewards
    move(state, trajectory, TrajectoryPhase.DROPPED if is_dropped else TrajectoryPhase.SCORED, now)
    group = state.groups[trajectory.id.group]
    was_open = group.phase is GroupPhase.OPEN
    group.settle(now=now, filters_equal=is_training and schedule.filters_equal_scores)
    if was_open and group.phase is not GroupPhase.OPEN:
        close(state, group, is_training)


def close(state: State, group: Group, is_training: bool) -> None:
    """A group has all it needs."""
    state.surplus.update({trajectory.id: trajectory for trajectory in group.forgo_unsettled()})
    if group.phase in (GroupPhase.DROPPED, GroupPhase.FILTERED):
        leave_ledger(state, group)
        del state.groups[group.id]
        state.left_out[group.id] = group.phase
        state.num_train_groups -= 1
        state.num_dropped_in_a_row += group.phase is GroupPhase.DROPPED
        state.num_useless_in_a_row += 1
    elif is_training:
        state.finished[group.id] = None
        state.num_dropped_in_a_row = state.num_useless_in_a_row = 0
    else:
        state.eval_open[group.id.source] -= 1


def _trainer_reached(state: State, schedule: Schedule, event: ev.TrainerReached, now: float) -> None:
    if event.version > state.version:
        raise CoreError(f"the trainer reached version {event.version}, the run is at {state.version}")
    state.trainer, state.trainer_heard_at = event.version, now


def _step_trained(state: State, schedule: Schedule, event: ev.StepTrained, now: float) -> None:
    if state.training is None or event.version != state.version + 1:
        raise CoreError(f"a step to version {event.version} was not asked for at version {state.version}")
    if state.publishing is not None:
        raise CoreError(f"version {state.publishing.version} was trained further while it was still being published")
    for group in state.batches.pop(0):
        state.groups.pop(group).move(GroupPhase.TRAINED, now=now)
    state.version = state.trainer = event.version
    state.training = None
    for instance in state.instances.values():
        instance.num_restarts = 0
    if schedule.is_save_due(state.version):
        state.save_due = state.version


def _training_failed(state: State, schedule: Schedule, event: ev.TrainingFailed, now: float) -> None:
    state.verdict = f"training failed: {event.reason}"


def _weights_published(state: State, schedule: Schedule, event: ev.WeightsPublished, now: float) -> None:
    state.publishing = None
    state.published = event.version


def _weights_pulled(state: State, schedule: Schedule, event: ev.WeightsPulled, now: float) -> None:
    instance = state.instance(event.instance)
    instance.move(InstancePhase.READY, now=now)
    instance.version = event.version


def _memory_released(state: State, schedule: Schedule, event: ev.MemoryReleased, now: float) -> None:
    state.instance(event.instance).move(InstancePhase.RELEASED, now=now)


def _checkpoint_saved(state: State, schedule: Schedule, event: ev.CheckpointSaved, now: float) -> None:
    state.saving = None
    if state.save_due == event.version:
        state.save_due = None


def _checkpoint_failed(state: State, schedule: Schedule, event: ev.CheckpointFailed, now: float) -> None:
    state.verdict = f"the checkpoint of step {event.version} could not be written: {event.reason}"


def _timer_fired(state: State, schedule: Schedule, event: ev.TimerFired, now: float) -> None:
    state.timer_at = None


_HANDLERS: dict[type[ev.Event], Callable[[State, Schedule, Any, float], None]] = {
    ev.RunStarted: _run_started,
    ev.RunResumed: _run_resumed,
    ev.StopRequested: _stop_requested,
    ev.PromptsOffered: _prompts_offered,
    ev.InstanceStarted: _instance_started,
    ev.InstanceLost: _instance_lost,
    ev.RolloutReported: _rollout_reported,
    ev.CostsMeasured: _costs_measured,
    ev.ResponsesAborted: _responses_aborted,
    ev.ResponsesScored: _responses_scored,
    ev.TrainerReached: _trainer_reached,
    ev.StepTrained: _step_trained,
    ev.TrainingFailed: _training_failed,
    ev.WeightsPublished: _weights_published,
    ev.WeightsPulled: _weights_pulled,
    ev.MemoryReleased: _memory_released,
    ev.CheckpointSaved: _checkpoint_saved,
    ev.CheckpointFailed: _checkpoint_failed,
    ev.TimerFired: _timer_fired,
}
