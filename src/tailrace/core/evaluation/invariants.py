"""What must hold in the evaluation room after every event."""

from __future__ import annotations

from tailrace.core.responses.group import GroupPhase
from tailrace.core.rooms import Rooms


def check(rooms: Rooms) -> None:
    evaluation = rooms.evaluation
    assert evaluation.requested.keys() <= evaluation.open.keys()
    assert evaluation.done <= rooms.training.version
    for name, num_open in evaluation.open.items():
        groups = [group for group in rooms.responses.all_groups() if group.id.source == name]
        assert all(not group.is_training for group in groups)
        if name not in evaluation.requested:
            assert sum(group.phase is GroupPhase.OPEN for group in groups) == num_open
