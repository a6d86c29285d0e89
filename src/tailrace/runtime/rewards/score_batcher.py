"""Batches scores of one part into events for the core.

Small models produce hundreds of scores a second, and one event for each would be most of the controller's work. A batch
is posted when every expected score has arrived, or 10 ms after its first score.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tailrace.core import events as ev
from tailrace.core.outcomes import Part
from tailrace.rewards.score_task import ProgramTimes, ScoreResult

_MAX_DELAY_S = 0.01


class ScoreBatcher:
    """Collects scores and posts them as ``ResponsesScored``. All calls must come from one event loop."""

    def __init__(self, post: Callable[[ev.Event], None], part: Part = Part.FUNCTION) -> None:
        self._post, self._part = post, part
        self._num_expected = 0
        self._pending: list[ev.Scored] = []
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, count: int) -> None:
        """``count`` more scores will be added later."""
        self._num_expected += count

    def add(self, result: ScoreResult) -> None:
        self._num_expected -= 1
        self._pending.append(_scored(result))
        if not self._num_expected:
            self._post_batch()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_MAX_DELAY_S, self._post_batch)

    def _post_batch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        scores, self._pending = tuple(self._pending), []
        self._post(ev.ResponsesScored(scores=scores, part=self._part))


def _scored(result: ScoreResult) -> ev.Scored:
    times = result.case_times or ProgramTimes(is_correct=False)
    return ev.Scored(
        response=result.response_id,
        outcome=result.outcome,
        score=result.score,
        seconds=round(result.seconds, 6),
        queued_s=round(result.queued_s, 3),
        extras=tuple(result.extras.items()),
        detail=result.detail,
        is_correct=times.is_correct,
        slow_cases=times.slow,
        cut_cases=times.cut,
    )
