"""Rewards that were asked for, until the reward processes have them: tasks are made off the event loop.

Every response of ``score`` has exactly one result. A response that is aborted before its task was made is reported as
aborted at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from tailrace.core.commands import CaseLimits
from tailrace.core.ids import ResponseId
from tailrace.core.outcomes import Outcome
from tailrace.rewards.score_task import ScoreResult
from tailrace.runtime.rewards.score_batcher import ScoreBatcher
from tailrace.runtime.threads.work_thread import WorkThread
from tailrace.workers.reward_tasks import RewardTask

_AT_ONCE = 16
"""Tasks made in one go: a few milliseconds, so that the first rewards need not wait for the last task."""


class ScoringPool(Protocol):
    def submit(self, task: RewardTask) -> None: ...
    def abort(self, responses: Iterable[ResponseId]) -> None: ...


class Scoring:
    """Owns the responses whose tasks are being made. Use it from one event loop."""

    def __init__(
        self, pool: ScoringPool, scores: ScoreBatcher, *, task: Callable[[ResponseId], RewardTask], work: WorkThread
    ) -> None:
        """``task`` is called in the thread of ``work``."""
        self._pool, self._scores, self._task, self._work = pool, scores, task, work
        self._orders: dict[ResponseId, object] = {}
        """The newest order for each of them: an older one for the same response was aborted."""

    def score(self, responses: Sequence[ResponseId], limits: Sequence[CaseLimits] = ()) -> None:
        """``limits``: of the test cases of each response; empty: the reward's own."""
        self._scores.expect(len(responses))
        for start in range(0, len(responses), _AT_ONCE):
            self._prepare(responses[start : start + _AT_ONCE], limits[start : start + _AT_ONCE])

    def abort(self, responses: Iterable[ResponseId]) -> None:
        given = []
        for response in responses:
            if self._orders.pop(response, None) is None:
                given.append(response)
            else:
                self._scores.add(ScoreResult(response_id=response, outcome=Outcome.ABORTED, score=0.0, seconds=0.0))
        self._pool.abort(given)

    def _prepare(self, responses: Sequence[ResponseId], limits: Sequence[CaseLimits]) -> None:
        orders = {response: object() for response in responses}
        self._orders |= orders

        def submit(tasks: list[RewardTask]) -> None:
            for task in tasks:
                if self._orders.get(task.response_id) is orders[task.response_id]:
                    del self._orders[task.response_id]
                    self._pool.submit(task)

        def make() -> list[RewardTask]:
            tasks = [self._task(response) for response in responses]
            if not limits:
                return tasks
            return [replace(task, case_limits=limit) for task, limit in zip(tasks, limits, strict=True)]

        self._work.do(make, then=submit)
