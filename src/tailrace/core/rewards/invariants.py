"""What must hold in the rewards room after every event."""

from __future__ import annotations

from tailrace.core.responses.response import ResponsePhase
from tailrace.core.rewards.room import Requested
from tailrace.core.rooms import Rooms


def check(rooms: Rooms) -> None:
    rewards, responses = rooms.rewards, list(rooms.responses.all_responses())
    surplus = rooms.collection.surplus_ids()
    assert set(rewards.generated) == {r.id for r in responses if r.phase is ResponsePhase.GENERATED}
    scoring = {r.id for r in responses if r.phase is ResponsePhase.SCORING}
    for part in rooms.schedule.score_parts:
        requested = rewards.requested.get(part, Requested())
        done = {r.id for r in responses if any(each.part is part for each in r.part_scores)}
        assert set(requested.scoring) - surplus == scoring - done, f"{part} is not awaited as it should be"
        assert not {r.id for r in responses} & set(requested.aborting), "an aborted response is still here"
    for response in responses:
        is_partly_scored = response.phase in (ResponsePhase.GENERATED, ResponsePhase.SCORING)
        assert is_partly_scored or not response.part_scores, "parts of a score that is settled"
        assert len(response.part_scores) < len(rooms.schedule.score_parts), "all parts are there"
