"""The parts of the scores of a run: each has workers, a queue and time limits of its own, so none waits for another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tailrace.core import commands as do
from tailrace.core.outcomes import Part
from tailrace.runtime.rewards.scoring import Scoring, ScoringPool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePart:
    pool: ScoringPool
    scoring: Scoring
    kill_on_gpu: Callable[[], None] | None = None
    """Kills its workers and starts them again; None: they use no GPU."""


class ScoreParts:
    """Owns the pools. Use it from one event loop."""

    def __init__(self, parts: Mapping[Part, ScorePart]) -> None:
        self._parts = parts

    async def start(self) -> None:
        """Start all workers; ``ValueError`` with the reason if some cannot do their work."""
        starts = [asyncio.ensure_future(each.pool.start()) for each in self._parts.values()]
        try:
            await asyncio.gather(*starts)
        except BaseException:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            raise

    def perform(self, command: do.Score | do.LimitCases | do.AbortScores) -> None:
        match command:
            case do.Score(responses=responses, part=part, limits=limits):
                self._parts[part].scoring.score(responses, limits)
            case do.LimitCases(responses=responses, limits=newest):
                self._parts[Part.TESTS].scoring.limit(responses, newest)
            case do.AbortScores(responses=responses, part=part):
                self._parts[part].scoring.abort(responses)

    def kill_on_gpu(self) -> None:
        """Kill all workers that use a GPU, and start them again."""
        for each in self._parts.values():
            if each.kill_on_gpu is not None:
                each.kill_on_gpu()

    async def stop(self) -> None:
        await asyncio.gather(*(each.pool.stop() for each in self._parts.values()))
