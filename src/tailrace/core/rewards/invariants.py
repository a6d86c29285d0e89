"""What must hold in the rewards room after every event."""

from __future__ import annotations

from tailrace.core.responses.trajectory import TrajectoryPhase
from tailrace.core.rooms import Rooms


def check(rooms: Rooms) -> None:
    rewards, trajectories = rooms.rewards, list(rooms.responses.trajectories())
    surplus = rooms.collection.surplus_ids()
    assert set(rewards.generated) == {t.id for t in trajectories if t.phase is TrajectoryPhase.GENERATED}
    assert set(rewards.scoring) - surplus == {t.id for t in trajectories if t.phase is TrajectoryPhase.SCORING}
    assert not {t.id for t in trajectories} & set(rewards.aborting), "an aborted response is still here"
