from __future__ import annotations

import asyncio

from tailrace.core import events as ev
from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.outcomes import Outcome
from tailrace.rewards.score_task import ScoreResult
from tailrace.runtime.rewards.score_batcher import ScoreBatcher


def result(number: int) -> ScoreResult:
    response = ResponseId(GroupId("train", 0, number), 0)
    return ScoreResult(response_id=response, outcome=Outcome.OK, score=float(number), seconds=0.0)


def told_after(expected: int, results: int, *, waiting_s: float = 0.0) -> list[list[float]]:
    told: list[list[float]] = []

    def post(event: ev.Event) -> None:
        assert isinstance(event, ev.ResponsesScored)
        told.append([scored.score for scored in event.scores])

    async def run() -> None:
        batcher = ScoreBatcher(post)
        batcher.expect(expected)
        for number in range(results):
            batcher.add(result(number))
        await asyncio.sleep(waiting_s)

    asyncio.run(run())
    return told


def test_scores_are_told_at_once_when_no_other_is_waited_for() -> None:
    assert told_after(3, 3) == [[0.0, 1.0, 2.0]]


def test_scores_are_gathered_while_others_come_but_not_for_long() -> None:
    assert told_after(3, 2) == []
    assert told_after(3, 2, waiting_s=0.5) == [[0.0, 1.0]]


def test_what_was_told_is_not_told_again() -> None:
    assert told_after(2, 2, waiting_s=0.1) == [[0.0, 1.0]]
