"""Scores of one part that were asked for, until the workers of that part have them: tasks are made off the event loop.

Every response of ``score`` has exactly one result. A response that is aborted before its task was made is reported as
aborted at once. So is one whose prompt asks for nothing of this part, as abstained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from tailrace.core.commands import CaseLimits
from tailrace.core.ids import ResponseId
from tailrace.core.outcomes import Outcome
from tailrace.rewards.score_task import ScoreResult
from tailrace.runtime.rewards.case_limits import NewestLimits
from tailrace.runtime.rewards.score_batcher import ScoreBatcher
from tailrace.runtime.threads.work_thread import WorkThread
from tailrace.workers.reward_tasks import RewardTask

_AT_ONCE = 16
"""Tasks made in one go: a few milliseconds, so that the first rewards need not wait for the last task."""


class ScoringPool(Protocol):
    """The workers that make one part of the scores."""

    async def start(self) -> None:
        """Start the workers; `ValueError` with the reason if they cannot do their work."""
        ...

    def submit(self, task: RewardTask) -> None: ...
    def abort(self, responses: Iterable[ResponseId]) -> None: ...

    async def stop(self) -> None:
        """End the workers. No result is delivered after this."""
        ...


class Scoring:
    """Owns the responses whose tasks are being made. Use it from one event loop."""

    def __init__(
        self,
        pool: ScoringPool,
        scores: ScoreBatcher,
        *,
        task: Callable[[ResponseId], RewardTask],
        work: WorkThread,
        applies: Callable[[ResponseId], bool] = lambda response: True,
        limits: NewestLimits | None = None,
    ) -> None:
        """``task`` is called in the thread of ``work``. ``applies``: whether the score of a response has this part.
        ``limits``: where the pool looks up the time limits of test cases."""
        self._pool, self._scores, self._task, self._work = pool, scores, task, work
        self._applies, self._limits = applies, limits or NewestLimits()
        self._orders: dict[ResponseId, object] = {}
        """The newest order for each of them: an older one for the same response was aborted."""

    def score(self, responses: Sequence[ResponseId], limits: Sequence[CaseLimits] = ()) -> None:
        """``limits``: of the test cases of each response; empty: the reward knows its own."""
        self._scores.expect(len(responses))
        asked = []
        for at, response in enumerate(responses):
            if self._applies(response):
                asked.append(response)
                if limits:
                    self._limits.note(response, limits[at])
            else:
                self._scores.add(_without_work(response, Outcome.ABSTAINED))
        for start in range(0, len(asked), _AT_ONCE):
            self._prepare(asked[start : start + _AT_ONCE])

    def limit(self, responses: Iterable[ResponseId], limits: CaseLimits) -> None:
        """These limits hold for responses that no worker has yet."""
        self._limits.change(responses, limits)

    def abort(self, responses: Iterable[ResponseId]) -> None:
        given = []
        for response in responses:
            if self._orders.pop(response, None) is None:
                given.append(response)
            else:
                self._limits.forget(response)
                self._scores.add(_without_work(response, Outcome.ABORTED))
        self._pool.abort(given)

    def _prepare(self, responses: Sequence[ResponseId]) -> None:
        orders = {response: object() for response in responses}
        self._orders |= orders

        def submit(tasks: list[RewardTask]) -> None:
            for task in tasks:
                if self._orders.get(task.response_id) is orders[task.response_id]:
                    del self._orders[task.response_id]
                    self._pool.submit(task)

        def make() -> list[RewardTask]:
            return [self._task(response) for response in responses]

        self._work.do(make, then=submit)


def _without_work(response: ResponseId, outcome: Outcome) -> ScoreResult:
    return ScoreResult(response_id=response, outcome=outcome, score=0.0, seconds=0.0)
