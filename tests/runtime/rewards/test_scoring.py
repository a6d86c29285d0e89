"""Every response whose reward is asked for gets one result, also if it is aborted while its text is made."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable

from tailrace.core import events as ev
from tailrace.core.commands import CaseLimits
from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.outcomes import Outcome
from tailrace.rewards.score_task import ScoreTask
from tailrace.runtime.rewards.case_limits import NewestLimits
from tailrace.runtime.rewards.score_batcher import ScoreBatcher
from tailrace.runtime.rewards.scoring import Scoring
from tailrace.runtime.threads.work_thread import WorkThread

FIRST, SECOND = (ResponseId(GroupId("train", 0, 0), member) for member in range(2))


class Pool:
    def __init__(self) -> None:
        self.submitted: list[ResponseId] = []
        self.aborted: list[ResponseId] = []

    def submit(self, task: ScoreTask) -> None:
        self.submitted.append(task.response_id)

    def abort(self, responses: Iterable[ResponseId]) -> None:
        self.aborted += responses


class Stage:
    """A scoring whose texts are made only when ``gate`` is open."""

    def __init__(self, limits: NewestLimits | None) -> None:
        self.pool, self.told = Pool(), []
        self.gate = threading.Event()
        self.work = WorkThread("test")
        self.scoring = Scoring(self.pool, ScoreBatcher(self._hear), task=self._task, work=self.work, limits=limits)

    def _hear(self, event: ev.Event) -> None:
        assert isinstance(event, ev.ResponsesScored)
        self.told += [(scored.response, scored.outcome) for scored in event.scores]

    def _task(self, response: ResponseId) -> ScoreTask:
        self.gate.wait()
        return ScoreTask(response_id=response, row={}, response="")

    async def finish(self) -> None:
        self.gate.set()
        await self.work.ask(lambda: None)
        await asyncio.sleep(0)
        self.work.close()


def play(act: Callable[[Scoring], None], limits: NewestLimits | None = None) -> Stage:
    async def run() -> Stage:
        stage = Stage(limits)
        act(stage.scoring)
        await stage.finish()
        return stage

    return asyncio.run(run())


def test_responses_reach_the_pool_in_the_order_asked_for() -> None:
    stage = play(lambda scoring: scoring.score([SECOND, FIRST]))
    assert stage.pool.submitted == [SECOND, FIRST]
    assert stage.told == []


def test_one_that_is_aborted_while_its_text_is_made_is_told_and_never_submitted() -> None:
    def act(scoring: Scoring) -> None:
        scoring.score([FIRST])
        scoring.abort([FIRST, SECOND])

    stage = play(act)
    assert stage.told == [(FIRST, Outcome.ABORTED)]
    assert stage.pool.submitted == []
    assert stage.pool.aborted == [SECOND], "the pool looks after those it was given"


def test_the_pool_finds_the_newest_limits_of_those_that_wait() -> None:
    limits = NewestLimits()

    def act(scoring: Scoring) -> None:
        scoring.score([FIRST, SECOND], [CaseLimits(30.0), CaseLimits(30.0)])
        scoring.limit([FIRST], CaseLimits(2.0, ((1, 6.0),)))
        scoring.abort([SECOND])
        scoring.limit([SECOND], CaseLimits(2.0))

    play(act, limits)
    assert limits.of(FIRST) == CaseLimits(2.0, ((1, 6.0),))
    assert limits.of(SECOND) is None, "it is not awaited any more"


def test_one_that_is_asked_for_again_after_it_was_aborted_is_submitted_once() -> None:
    def act(scoring: Scoring) -> None:
        scoring.score([FIRST])
        scoring.abort([FIRST])
        scoring.score([FIRST])

    stage = play(act)
    assert stage.told == [(FIRST, Outcome.ABORTED)]
    assert stage.pool.submitted == [FIRST]
