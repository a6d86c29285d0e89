"""Aborting a response: all work on it stops, and its tokens are dropped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tailrace.core import commands as do
from tailrace.core.responses.trajectory import Trajectory, TrajectoryPhase
from tailrace.core.rooms import Rooms


def abort(rooms: Rooms, trajectories: Iterable[Trajectory]) -> Iterator[do.Command]:
    """Abort responses in any phase. The caller removes them from their group, or removes the whole group."""
    running, scoring = list[Trajectory](), list[Trajectory]()
    for trajectory in trajectories:
        match trajectory.phase:
            case TrajectoryPhase.PENDING:
                rooms.responses.stop_waiting(trajectory.id.group, 1)
            case TrajectoryPhase.RUNNING:
                running.append(trajectory)
            case TrajectoryPhase.GENERATED:
                rooms.rewards.remove_generated(trajectory.id)
            case TrajectoryPhase.SCORING:
                scoring.append(trajectory)
    yield from rooms.fleet.abort(running)
    yield from rooms.rewards.abort(scoring)
