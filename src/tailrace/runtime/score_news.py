"""Scores on their way to the core: gathered for a moment, told at once when no other is being waited for.

Rewards of small models come by the hundred, and an event for each of them would be most of the controller's work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tailrace.core import events as ev
from tailrace.rewards.outcome import ScoreResult

_TOLD_EVERY_S = 0.01


class ScoreNews:
    """Use it from one event loop."""

    def __init__(self, post: Callable[[ev.Event], None]) -> None:
        self._post = post
        self._num_expected = 0
        self._untold: list[ev.Scored] = []
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, count: int) -> None:
        """So many more will come."""
        self._num_expected += count

    def add(self, result: ScoreResult) -> None:
        self._num_expected -= 1
        self._untold.append(_scored(result))
        if not self._num_expected:
            self._tell()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TOLD_EVERY_S, self._tell)

    def _tell(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        scores, self._untold = tuple(self._untold), []
        self._post(ev.ResponsesScored(scores=scores))


def _scored(result: ScoreResult) -> ev.Scored:
    return ev.Scored(
        trajectory=result.trajectory,
        outcome=result.outcome,
        score=result.score,
        seconds=result.seconds,
        extras=tuple(result.extras.items()),
        detail=result.detail,
    )
