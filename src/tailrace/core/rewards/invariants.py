"""What must hold in the rewards room after every event."""

from __future__ import annotations

from tailrace.core.responses.response import ResponsePhase
from tailrace.core.rooms import Rooms


def check(rooms: Rooms) -> None:
    rewards, responses = rooms.rewards, list(rooms.responses.all_responses())
    surplus = rooms.collection.surplus_ids()
    assert set(rewards.generated) == {r.id for r in responses if r.phase is ResponsePhase.GENERATED}
    assert set(rewards.scoring) - surplus == {r.id for r in responses if r.phase is ResponsePhase.SCORING}
    assert not {r.id for r in responses} & set(rewards.aborting), "an aborted response is still here"
