"""What must hold in the training room after every event."""

from __future__ import annotations

from tailrace.core.responses.group import GroupPhase
from tailrace.core.rooms import Rooms


def check(rooms: Rooms) -> None:
    training = rooms.training
    assert training.published <= training.version <= rooms.schedule.max_steps
    _check_step(rooms)
    assert training.publishing is None or training.publishing.version == training.version
    assert training.trainer is None or training.trainer <= training.version
    taken = [group for batch in training.batches for group in batch]
    assert set(taken) == {g.id for g in rooms.responses.training_groups() if g.phase is GroupPhase.TAKEN}
    for group in rooms.responses.all_groups():
        assert group.version is None or group.version <= training.version


def _check_step(rooms: Rooms) -> None:
    """Each committed group is in exactly one piece, and all of them are in the batch that is trained next."""
    training, step = rooms.training, rooms.training.step
    assert 0 <= step.num_done <= step.num_sent <= len(step.streamed) + step.is_finishing
    assert not step.is_finishing or (training.batches and step.num_sent >= len(step.streamed))
    assert len(set(step.groups)) == len(step.groups)
    committed = rooms.collection.committed_groups
    if training.batches:
        assert not committed
        assert set(step.groups) <= set(training.batches[0])
    else:
        assert set(step.groups) == set(committed)
    assert rooms.schedule.streams or not step.streamed
