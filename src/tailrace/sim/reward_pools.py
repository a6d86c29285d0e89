"""The parts of scores in virtual time: a queue and workers for each, so that no part waits for another.

Every response of a ``Score`` gets one answer for its part: a score, or that it was aborted. A part that has no opinion
on a response says so at once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Protocol

from tailrace.core import commands as do
from tailrace.core.commands import CaseLimits
from tailrace.core.events import ResponsesScored, Scored
from tailrace.core.ids import ResponseId
from tailrace.core.outcomes import Outcome, Part
from tailrace.core.schedule import CaseTime
from tailrace.sim.driver import Agenda
from tailrace.sim.judge_model import SimJudges
from tailrace.sim.reward_model import RewardCosts, Scoring


class ScorePool(Protocol):
    def score(self, responses: Iterable[tuple[ResponseId, CaseLimits | None]]) -> None: ...

    def abort(self, responses: Iterable[ResponseId]) -> None: ...


class SimRewards:
    """Owns the pools."""

    def __init__(
        self,
        costs: RewardCosts,
        agenda: Agenda,
        *,
        case_time: CaseTime,
        learns_times: bool,
        tokens_of: Callable[[ResponseId], int],
        rollout_share: Callable[[], float],
        on_judge: Callable[[], None],
    ) -> None:
        """``learns_times``: whether the run has a use for the times of test cases. ``tokens_of``, ``rollout_share`` and
        ``on_judge``: see ``SimJudges``."""
        self._costs, self._agenda = costs, agenda
        self._pools: dict[Part, ScorePool] = {}
        self._judges: SimJudges | None = None
        told_from_s = case_time.told_from_s if learns_times else _never
        for part, num_workers, scoring in costs.pools(told_from_s, case_time.most_s):
            self._pools[part] = WorkerPool(part, num_workers, scoring, agenda, report_s=costs.report_s)
        if costs.judge is not None and not costs.fitted:
            self._pools[Part.JUDGE] = self._judges = SimJudges(
                costs.judge,
                agenda,
                tokens_of=tokens_of,
                is_solved=costs.is_solved,
                rollout_share=rollout_share,
                on_busy=on_judge,
            )

    @property
    def slowdown(self) -> float:
        """Factor by which judges on the devices of rollout slow it down now."""
        if self._judges is None or self._costs.judge is None:
            return 1.0
        return 1.0 + (self._costs.judge.rollout_slowdown - 1.0) * self._judges.busy_share

    def score(self, command: do.Score) -> None:
        part, due, abstained = command.part, [], []
        for response, limits in zip(command.responses, command.limits or repeat(None), strict=False):
            if self._costs.applies(part, response.group):
                due.append((response, limits))
            else:
                abstained.append(Scored(response=response, outcome=Outcome.ABSTAINED, score=0.0, seconds=0.0))
        if abstained:
            self._agenda.post(ResponsesScored(scores=tuple(abstained), part=part))
        if due:
            self._pools[part].score(due)

    def limit(self, command: do.LimitCases) -> None:
        tests = self._pools[Part.TESTS]
        assert isinstance(tests, WorkerPool)
        tests.limit(command.responses, command.limits)

    def abort(self, command: do.AbortScores) -> None:
        self._pools[command.part].abort(command.responses)


def _never(limit_s: float) -> float:
    return math.inf


class WorkerPool:
    """Workers that score one response at a time, first come first served. Their work can be aborted."""

    def __init__(self, part: Part, num_workers: int, scoring: Scoring, agenda: Agenda, *, report_s: float) -> None:
        self._part, self._num_workers, self._scoring = part, num_workers, scoring
        self._agenda, self._report_s = agenda, report_s
        self._queue: deque[ResponseId] = deque()
        self._waiting: dict[ResponseId, tuple[float, CaseLimits | None]] = {}
        """When each response of the queue joined it, and its limits. Aborted ones are in the queue only."""
        self._running: dict[ResponseId, Scored] = {}
        self._untold: list[Scored] = []

    def score(self, responses: Iterable[tuple[ResponseId, CaseLimits | None]]) -> None:
        for response, limits in responses:
            self._queue.append(response)
            self._waiting[response] = (self._agenda.now, limits)
        self._start()

    def limit(self, responses: Iterable[ResponseId], limits: CaseLimits) -> None:
        """These limits hold for responses that no worker has yet."""
        for response in responses:
            if response in self._waiting:
                self._waiting[response] = (self._waiting[response][0], limits)

    def abort(self, responses: Iterable[ResponseId]) -> None:
        """Report each response that is not scored yet as aborted. Its worker is free at once."""
        gone = []
        for response in responses:
            is_queued = self._waiting.pop(response, None) is not None
            if self._running.pop(response, None) is not None or is_queued:
                gone.append(Scored(response=response, outcome=Outcome.ABORTED, score=0.0, seconds=0.0))
        if gone:
            self._agenda.post(ResponsesScored(scores=tuple(gone), part=self._part))
        self._start()

    def _start(self) -> None:
        instant = []
        while self._queue and len(self._running) < self._num_workers:
            response = self._queue.popleft()
            if (waited := self._waiting.pop(response, None)) is None:
                continue  # aborted
            since, limits = waited
            scored = replace(self._scoring(response, limits), queued_s=round(self._agenda.now - since, 3))
            if scored.seconds == 0:
                instant.append(scored)
            else:
                self._running[response] = scored
                self._agenda.after(scored.seconds, partial(self._end, scored))
        if instant:
            self._agenda.post(ResponsesScored(scores=tuple(instant), part=self._part))

    def _end(self, scored: Scored) -> None:
        if self._running.get(scored.response) is scored:
            del self._running[scored.response]
            if not self._untold:
                self._agenda.after(self._report_s, self._tell)
            self._untold.append(scored)
            self._start()

    def _tell(self) -> None:
        self._agenda.post(ResponsesScored(scores=tuple(self._untold), part=self._part))
        self._untold = []
