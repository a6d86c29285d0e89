"""What must hold in the training room after every event."""

from __future__ import annotations

from tailrace.core.responses.group import GroupPhase
from tailrace.core.rooms import Rooms


def check(rooms: Rooms) -> None:
    training = rooms.training
    assert training.published <= training.version <= rooms.schedule.max_steps
    assert training.step is None or training.batches
    assert training.publishing is None or training.publishing.version == training.version
    assert training.trainer is None or training.trainer <= training.version
    taken = [group for batch in training.batches for group in batch]
    assert set(taken) == {g.id for g in rooms.responses.training_groups() if g.phase is GroupPhase.TAKEN}
    for group in rooms.responses.all_groups():
        assert group.version is None or group.version <= training.version
