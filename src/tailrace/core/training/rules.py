"""When the trainer starts, publishes, saves and steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tailrace.core import commands as do
from tailrace.core.errors import CoreError
from tailrace.core.fleet.lending import piece_replicas
from tailrace.core.ids import GroupId
from tailrace.core.requests import OpenRequest
from tailrace.core.responses.response import Finish
from tailrace.core.rooms import Rooms
from tailrace.core.schedule import Placement


def start_trainer(rooms: Rooms, now: float) -> Iterator[do.Command]:
    training = rooms.training
    if rooms.run.is_stopping or not rooms.schedule.trains:
        return
    if not training.is_trainer_asked and training.failure(rooms.run.limits) is None:
        training.is_trainer_asked, training.heard_at = True, now
        training.incarnation += rooms.schedule.edition > 1
        yield do.StartTrainer(incarnation=training.incarnation)


def advance(rooms: Rooms, now: float) -> Iterator[do.Command]:
    """Publish, then save, then train pieces of the next batch, then take the step.

    This is one rule because the order of the commands matters. The training worker saves a version before it begins the
    next step. Publishing goes on meanwhile and is over before the step changes the weights. Publishing comes first
    because instances wait for it.
    """
    if rooms.run.is_stopping:
        yield from _save_last(rooms, now)
        return
    yield from _publish(rooms, now)
    yield from _save(rooms, now)
    if rooms.training.is_open_for_pieces(rooms.evaluation_is_over()):
        replicas = piece_replicas(rooms)
        if replicas is not None and not rooms.training.num_batches:
            yield from _stream(rooms, now, replicas)
    yield from _train(rooms, now)


def _save_last(rooms: Rooms, now: float) -> Iterator[do.Command]:
    """Save what is not saved yet: the run ends after it. A step that still waits for its round is dropped first."""
    training = rooms.training
    if training.version > training.saves.version:
        training.save_due = training.version
    if training.step.has_begun and not training.step.is_finishing:
        training.step.forget()
        yield do.DropStep(version=training.version)
    yield from _save(rooms, now)


def _publish(rooms: Rooms, now: float) -> Iterator[do.Command]:
    training = rooms.training
    is_possible = training.publishing is None and not training.step.has_begun and training.is_trainer_ready
    if (training.published < training.version or not training.can_pull) and is_possible:
        training.publishing = OpenRequest(since=now, version=training.version)
        yield do.PublishWeights(version=training.version)


def _save(rooms: Rooms, now: float) -> Iterator[do.Command]:
    training = rooms.training
    is_possible = training.saving is None and not training.step.has_begun and training.is_trainer_ready
    if training.save_due is not None and is_possible:
        training.saving = OpenRequest(since=now, version=training.save_due)
        is_last = training.version == rooms.schedule.max_steps or rooms.run.is_stopping
        may_skip = rooms.schedule.save_share > 0 and not is_last
        yield do.SaveCheckpoint(version=training.save_due, may_skip=may_skip)


def _train(rooms: Rooms, now: float) -> Iterator[do.Command]:
    training, schedule = rooms.training, rooms.schedule
    # A run that is continued may end earlier than planned, with a batch for a step that is no longer wanted.
    if training.version >= schedule.max_steps or not training.is_due(rooms.evaluation_is_over()):
        return
    if schedule.placement is Placement.COLOCATED and not rooms.fleet.is_off_device():
        return
    yield from _stream(rooms, now)
    streamed = set(training.step.groups)
    if rest := [group for group in training.batches[0] if group not in streamed]:
        yield _send(rooms, rest, now)
    training.step.finish(now)
    yield do.FinishStep(version=training.version)


def _stream(rooms: Rooms, now: float, replicas: tuple[int, ...] = ()) -> Iterator[do.Command]:
    """Send the pieces that were chosen and that the trainer does not have."""
    step = rooms.training.step
    for groups in step.streamed[step.num_sent :]:
        yield _send(rooms, groups, now, replicas)


def _send(rooms: Rooms, groups: Iterable[GroupId], now: float, replicas: tuple[int, ...] = ()) -> do.Accumulate:
    """Return the command for the next piece, and note that it is sent. ``replicas``: those that train it; empty:
    all."""
    training, schedule = rooms.training, rooms.schedule
    piece = replace(_accumulate(rooms, training.step.num_sent, groups), replicas=replicas)
    if schedule.is_strict and min(piece.oldest) < training.version - (schedule.max_staleness or 0):
        worst = min(zip(piece.oldest, piece.responses, strict=True))
        raise CoreError(f"{worst[1]} has tokens of version {worst[0]}, too old to train {training.version}")
    training.step.send(now)
    return piece


def sent_pieces(rooms: Rooms) -> Iterator[do.Accumulate]:
    """Return the commands for the pieces that the trainer was sent and has not trained. They are the same for every
    call."""
    step, pieces = rooms.training.step, list(rooms.training.step.streamed)
    if step.is_finishing:
        streamed = set(step.groups)
        pieces.append(tuple(group for group in rooms.training.batches[0] if group not in streamed))
    for number, groups in enumerate(pieces[: step.num_sent]):
        yield _accumulate(rooms, number, groups)


def _accumulate(rooms: Rooms, number: int, groups: Iterable[GroupId]) -> do.Accumulate:
    version = rooms.training.version
    members = sorted((r for group in groups for r in rooms.responses.group(group).scored()), key=lambda r: r.id)
    # A response without tokens counts as generated by the current version.
    oldest = tuple(min((version for version, _ in r.segments), default=version) for r in members)
    return do.Accumulate(
        version=version,
        responses=tuple(r.id for r in members),
        scores=tuple(r.score for r in members),
        truncated=tuple(r.id for r in members if r.finish is Finish.LENGTH),
        oldest=oldest,
        piece=number,
    )
