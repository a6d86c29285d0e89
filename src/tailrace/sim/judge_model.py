"""Judges in virtual time: models that score what waits together, in passes.

A pass over responses takes ``max(copy_s, pass_s + response_s * responses + token_s * tokens)`` seconds. Judges that are
free share what waits equally. On the devices of rollout, judges slow rollout down while they compute, in proportion to
the judges that do, and rollout slows the judges down. A pass that has begun is computed to its end, also if its
responses are aborted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from tailrace.core.commands import CaseLimits
from tailrace.core.events import ResponsesScored, Scored
from tailrace.core.ids import ResponseId
from tailrace.core.outcomes import Outcome, Part
from tailrace.sim.driver import Agenda


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeCosts:
    share: float = 1.0
    """Share of the prompts whose responses a judge scores, relative to the shares of all other kinds."""
    num_judges: int
    """Judges, each of which computes one pass at a time."""
    pass_s: float = 0.0
    """Fixed seconds of a pass."""
    response_s: float = 0.0
    """Seconds per response of a pass."""
    token_s: float = 0.0
    """Seconds per token that the judge reads."""
    copy_s: float = 0.0
    """The least seconds of a pass: layers that come from host memory are copied while others compute."""
    template_tokens: int = 0
    """Tokens that the judge reads beside prompt and response."""
    max_pass_tokens: int = 65536
    """Most tokens of a pass, unless a single response has more."""
    rollout_slowdown: float = 1.0
    """Factor by which rollout takes longer while all judges compute; 1: they have devices of their own."""
    slowdown: float = 1.0
    """Factor by which a pass takes longer that begins while all instances generate."""

    def pass_seconds(self, num_responses: int, tokens: int) -> float:
        return max(self.copy_s, self.pass_s + self.response_s * num_responses + self.token_s * tokens)


@dataclass(frozen=True, slots=True)
class _Waiting:
    response: ResponseId
    since: float
    tokens: int


class SimJudges:
    """Owns the judges and the queue before them."""

    def __init__(
        self,
        costs: JudgeCosts,
        agenda: Agenda,
        *,
        tokens_of: Callable[[ResponseId], int],
        is_solved: Callable[[ResponseId], bool],
        rollout_share: Callable[[], float],
        on_busy: Callable[[], None],
    ) -> None:
        """``tokens_of``: tokens of a response and its prompt. ``rollout_share``: share of the instances that generate
        now. ``on_busy`` is called whenever ``busy_share`` has changed."""
        self._costs, self._agenda = costs, agenda
        self._tokens_of, self._is_solved = tokens_of, is_solved
        self._rollout_share, self._on_busy = rollout_share, on_busy
        self._queue: dict[ResponseId, _Waiting] = {}
        self._computed: dict[ResponseId, Scored] = {}
        """What passes in progress will report."""
        self._num_busy = 0

    @property
    def busy_share(self) -> float:
        """Share of the judges that compute."""
        return self._num_busy / self._costs.num_judges

    def score(self, responses: Iterable[tuple[ResponseId, CaseLimits | None]]) -> None:
        for response, _ in responses:
            tokens = self._tokens_of(response) + self._costs.template_tokens
            self._queue[response] = _Waiting(response, self._agenda.now, tokens)
        self._begin()

    def abort(self, responses: Iterable[ResponseId]) -> None:
        """Report each response that is not scored yet as aborted."""
        gone = [r for r in responses if self._queue.pop(r, None) or self._computed.pop(r, None)]
        if gone:
            scores = tuple(Scored(response=r, outcome=Outcome.ABORTED, score=0.0, seconds=0.0) for r in gone)
            self._agenda.post(ResponsesScored(scores=scores, part=Part.JUDGE))

    def _begin(self) -> None:
        was_busy = self._num_busy
        while self._queue and self._num_busy < self._costs.num_judges:
            chosen = self._next_pass()
            seconds = self._costs.pass_seconds(len(chosen), sum(each.tokens for each in chosen))
            seconds *= 1.0 + (self._costs.slowdown - 1.0) * self._rollout_share()
            for each in chosen:
                self._computed[each.response] = Scored(
                    response=each.response,
                    outcome=Outcome.OK,
                    score=float(self._is_solved(each.response)),
                    seconds=seconds,
                    queued_s=self._agenda.now - each.since,
                )
            self._num_busy += 1
            scores = [self._computed[each.response] for each in chosen]
            self._agenda.after(seconds, partial(self._end, scores))
        if self._num_busy != was_busy:
            self._on_busy()

    def _next_pass(self) -> list[_Waiting]:
        """Take from the queue what the next free judge computes."""
        most = math.ceil(len(self._queue) / (self._costs.num_judges - self._num_busy))
        chosen: list[_Waiting] = []
        tokens = 0
        for each in list(self._queue.values())[:most]:
            tokens += each.tokens
            if chosen and tokens > self._costs.max_pass_tokens:
                break
            chosen.append(each)
            del self._queue[each.response]
        return chosen

    def _end(self, scores: list[Scored]) -> None:
        self._num_busy -= 1
        found = tuple(each for each in scores if self._computed.get(each.response) is each)
        for each in found:
            del self._computed[each.response]
        if found:
            self._agenda.post(ResponsesScored(scores=found, part=Part.JUDGE))
        self._begin()
        self._on_busy()
