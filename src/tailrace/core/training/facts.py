"""Events of the trainer. A report that answers no command, or comes from a trainer that is gone, is refused and changes
nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from tailrace.core import events as ev
from tailrace.core.ids import Version
from tailrace.core.responses.group import GroupPhase
from tailrace.core.rooms import Rooms
from tailrace.core.training.saves import Saves
from tailrace.core.training.step import Step

E = TypeVar("E", bound=ev.TrainerEvent)
Handler = Callable[[Rooms, E, float], None]


def _of_the_present(handler: Handler[E]) -> Handler[E]:
    """Refuse a report of a trainer whose place a later one has taken."""

    @wraps(handler)
    def handle(rooms: Rooms, event: E, now: float) -> None:
        if event.incarnation is None or event.incarnation == rooms.training.incarnation:
            handler(rooms, event, now)
        else:
            rooms.run.refuse(f"the trainer of start {event.incarnation} is gone")

    return handle


@_of_the_present
def trainer_reached(rooms: Rooms, event: ev.TrainerReached, now: float) -> None:
    training = rooms.training
    is_older = training.trainer is not None and event.version <= training.trainer
    if not training.is_trainer_asked or event.version > training.version or is_older:
        rooms.run.refuse(f"the trainer reached version {event.version}, which was not asked of it")
        return
    training.trainer, training.heard_at = event.version, now


@_of_the_present
def gradients_accumulated(rooms: Rooms, event: ev.GradientsAccumulated, now: float) -> None:
    step = rooms.training.step
    if rooms.run.is_stopping and not step.has_begun:
        return  # the step was dropped after this
    is_next = step.num_done < step.num_sent and event.piece == step.num_done
    if event.version != rooms.training.version or not is_next:
        rooms.run.refuse(f"gradients of piece {event.piece} for version {event.version}, which were not asked for")
    elif rooms.schedule.streams:
        step.add(now)


@_of_the_present
def step_trained(rooms: Rooms, event: ev.StepTrained, now: float) -> None:
    training = rooms.training
    if not training.step.is_finishing or event.version != training.version + 1 or training.publishing is not None:
        rooms.run.refuse(f"a step to version {event.version}, which was not asked for at version {training.version}")
        return
    for group in training.batches.pop(0):
        rooms.responses.remove(group).move(GroupPhase.TRAINED, now=now)
    training.version = training.trainer = event.version
    training.step = Step()
    training.losses.count = 0
    rooms.fleet.step_trained()
    if rooms.schedule.is_save_due(training.version) or training.saves.is_due(rooms.schedule.save_share, now):
        training.save_due = training.version


@_of_the_present
def trainer_lost(rooms: Rooms, event: ev.TrainerLost, now: float) -> None:
    training = rooms.training
    if not training.is_trainer_asked:
        rooms.run.refuse("the trainer was lost already")
        return
    _reset_trainer(rooms)
    training.losses.add(event.reason)
    training.can_pull = training.version == 0  # nothing is published before the first step


def _reset_trainer(rooms: Rooms) -> None:
    """Reset all requests to the trainer: they will not be answered."""
    training = rooms.training
    training.trainer, training.is_trainer_asked = None, False
    training.step.forget()
    training.publishing = training.saving = training.killed_at = None


@_of_the_present
def training_failed(rooms: Rooms, event: ev.TrainingFailed, now: float) -> None:
    rooms.run.end(f"training failed: {event.reason}")


@_of_the_present
def weights_published(rooms: Rooms, event: ev.WeightsPublished, now: float) -> None:
    training = rooms.training
    if training.publishing is None or event.version != training.publishing.version:
        rooms.run.refuse(f"version {event.version} was published, which was not asked for")
        return
    training.publishing = None
    training.published, training.can_pull = event.version, True


@_of_the_present
def checkpoint_saved(rooms: Rooms, event: ev.CheckpointSaved, now: float) -> None:
    training = rooms.training
    if training.saving is None or event.version != training.saving.version:
        rooms.run.refuse(f"a checkpoint of step {event.version} was saved, which was not asked for")
        return
    training.saves = Saves(version=event.version, at=now, seconds=now - training.saving.since)
    _end_save(rooms, event.version, now)


@_of_the_present
def checkpoint_skipped(rooms: Rooms, event: ev.CheckpointSkipped, now: float) -> None:
    training = rooms.training
    if training.saving is None or event.version != training.saving.version:
        rooms.run.refuse(f"a checkpoint of step {event.version} was skipped, which was not asked for")
        return
    training.saves.at = now  # not tried again before as much time has passed
    _end_save(rooms, event.version, now)


def _end_save(rooms: Rooms, version: Version, now: float) -> None:
    training = rooms.training
    training.saving = None
    if training.step.has_begun and rooms.schedule.edition > 1:
        training.step.since = now  # the worker begins with it only now
    if training.save_due == version:
        training.save_due = None


@_of_the_present
def checkpoint_failed(rooms: Rooms, event: ev.CheckpointFailed, now: float) -> None:
    rooms.run.end(f"the checkpoint of step {event.version} could not be written: {event.reason}")


def run_resumed(rooms: Rooms, event: ev.RunResumed, now: float) -> None:
    """Reset the trainer: a new one starts from the newest checkpoint."""
    training = rooms.training
    _reset_trainer(rooms)
    training.losses.count, training.can_pull = 0, True
    training.saves.version = Version(event.checkpoint or 0)
    training.published = Version(0 if training.version == 0 else -1)
    if training.save_due not in (None, training.version) or training.save_due == event.checkpoint:
        training.save_due = None  # it is on disk, or the trainer already holds a later version
    is_new_end = event.schedule is not None and training.version == event.schedule.max_steps > 0
    if is_new_end and event.checkpoint != training.version:
        training.save_due = training.version  # the last version is always saved
