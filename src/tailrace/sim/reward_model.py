"""Reward workers in virtual time: a pool with a queue, whose work can be aborted.

Duration and score of a response are keyed by its id, like its length. A score is 1 or 0: each prompt has a solve rate
of its own (some prompts are never solved, some always), which is what dynamic sampling filters by.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from tailrace.core.events import ResponsesScored, Scored
from tailrace.core.ids import ResponseId
from tailrace.core.outcomes import Outcome
from tailrace.sim.driver import Agenda
from tailrace.sim.lengths import of_prompt, to_normal, uniforms


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardKind:
    """How long the rewards of one kind of prompt take."""

    share: float = 1.0
    """Share of the prompts that are of this kind, relative to the shares of the other kinds."""
    median_s: float = 0.0
    spread: float = 0.0
    """Standard deviation of the logarithm of the seconds."""
    timeout_share: float = 0.0
    """Share of the responses whose reward reaches the time limit."""
    timeout_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardCosts:
    seed: int
    num_workers: int
    kinds: tuple[RewardKind, ...] = (RewardKind(),)
    never_solved: float = 0.0
    """Share of the prompts whose responses all score 0."""
    always_solved: float = 0.0
    report_s: float = 0.0
    """Seconds between two reports of scores; 0: report each at once."""

    def judge(self, response: ResponseId) -> Scored:
        group = response.group
        which, difficulty = of_prompt(2, self.seed, "task", group.source, group.prompt)
        chance, duration, luck = uniforms(3, self.seed, "reward", *group, response.member, response.attempt)
        kind = self._kind(which)
        seconds = kind.median_s
        if seconds and kind.spread:
            seconds *= math.exp(kind.spread * to_normal(duration))
        if chance < kind.timeout_share or seconds >= kind.timeout_s:
            return Scored(response=response, outcome=Outcome.TIMEOUT, score=0.0, seconds=kind.timeout_s)
        score = float(luck < self._solve_rate(difficulty))
        return Scored(response=response, outcome=Outcome.OK, score=score, seconds=seconds)

    def _kind(self, position: float) -> RewardKind:
        position *= sum(kind.share for kind in self.kinds)
        for kind in self.kinds:
            position -= kind.share
            if position < 0:
                return kind
        return self.kinds[-1]

    def _solve_rate(self, position: float) -> float:
        if position < self.never_solved:
            return 0.0
        if position >= 1.0 - self.always_solved:
            return 1.0
        return (position - self.never_solved) / (1.0 - self.never_solved - self.always_solved)


class SimRewardPool:
    def __init__(self, costs: RewardCosts, agenda: Agenda) -> None:
        self._costs, self._agenda = costs, agenda
        self._queue: deque[ResponseId] = deque()
        self._running: dict[ResponseId, Scored] = {}
        self._aborted: set[ResponseId] = set()
        """Aborted responses that are still in the queue."""
        self._untold: list[Scored] = []

    def score(self, responses: Iterable[ResponseId]) -> None:
        self._queue.extend(responses)
        self._start()

    def abort(self, responses: Iterable[ResponseId]) -> None:
        """Report each response that is not scored yet as aborted. Its worker is free at once."""
        scores = []
        queued = set(self._queue) - self._aborted
        for response in responses:
            if self._running.pop(response, None) is None:
                if response not in queued:
                    continue  # scored before
                self._aborted.add(response)
            scores.append(Scored(response=response, outcome=Outcome.ABORTED, score=0.0, seconds=0.0))
        if scores:
            self._agenda.post(ResponsesScored(scores=tuple(scores)))
        self._start()

    def _start(self) -> None:
        instant = []
        while self._queue and len(self._running) < self._costs.num_workers:
            response = self._queue.popleft()
            if response in self._aborted:
                self._aborted.remove(response)
                continue
            scored = self._costs.judge(response)
            if scored.seconds == 0:
                instant.append(scored)
            else:
                self._running[response] = scored
                self._agenda.after(scored.seconds, partial(self._end, scored))
        if instant:
            self._agenda.post(ResponsesScored(scores=tuple(instant)))

    def _end(self, scored: Scored) -> None:
        if self._running.get(scored.response) is scored:
            del self._running[scored.response]
            if not self._untold:
                self._agenda.after(self._costs.report_s, self._tell)
            self._untold.append(scored)
            self._start()

    def _tell(self) -> None:
        self._agenda.post(ResponsesScored(scores=tuple(self._untold)))
        self._untold = []
