"""Times the tokens of an engine under chosen loads. Works with any engine that keeps the contract.

A visit to a load point fills the engine with responses of one length, times some steps and aborts the responses. Points
are visited in a new random order each time, so that other work on the machine affects all of them equally. The first
visit is a warm-up and is not counted; points for which the engine has no room are skipped from then on.

The responses share one prompt, so that an engine that copies prompts fills quickly; where they would share its memory
too, each has a prompt of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean, median

import numpy as np

from tailrace.core.ids import GroupId, ResponseId
from tailrace.engines.contract import Capabilities, Engine, Request, Sampling
from tailrace.observe.costs.engine_profile import LoadPoint, Measurement

TOKENS = 16
"""Number of tokens of each response that one visit times, at least."""
_FEWEST_STEPS = 4
_STEPS_TO_FILL = 4
"""Steps of several tokens until every response has a token, and some more for full batches."""


def num_steps(capabilities: Capabilities) -> int:
    """Number of steps timed in one visit."""
    return max(_FEWEST_STEPS, TOKENS // capabilities.tokens_per_step)


def room(capabilities: Capabilities) -> int:
    """Most tokens that a response grows by in one visit."""
    return max(2 * TOKENS, capabilities.tokens_per_step * (num_steps(capabilities) + _STEPS_TO_FILL))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Visit:
    step_s: float
    fill_s: float
    held: float
    kv_tokens: float


class LoadBench:
    def __init__(
        self,
        engine: Engine,
        *,
        vocab_size: int,
        sampling: Sampling,
        seed: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._engine, self._sampling, self._vocab_size = engine, sampling, vocab_size
        self._clock = clock
        self._random = Random(seed)
        self._num_visits = 0

    def measure(
        self, points: Sequence[LoadPoint], *, repeats: int, say: Callable[[str], None] = lambda line: None
    ) -> list[Measurement]:
        """Measure the points, in their order. Points for which the engine has no room are absent."""
        say(f"warming up: {len(points)} load points")
        visits: dict[LoadPoint, list[_Visit]] = {point: [] for point in points if self._visit(point) is not None}
        for number in range(repeats):
            for point in self._random.sample(list(visits), len(visits)):
                if (visit := self._visit(point)) is not None:
                    visits[point].append(visit)
            say(f"pass {number + 1} of {repeats} over {len(visits)} load points")
        return [_joined(point, visits[point]) for point in visits if visits[point]]

    def _visit(self, point: LoadPoint) -> _Visit | None:
        requests = self._requests(point)
        try:
            return self._timed(requests, point)
        finally:
            # Not ``abort``: an interrupt also waits for what is being computed, which the next visit must not pay for.
            self._engine.interrupt(request.response_id for request in requests)

    def _timed(self, requests: Sequence[Request], point: LoadPoint) -> _Visit | None:
        lengths: dict[ResponseId, int] = {}
        fill_s = self._fill(requests, lengths)
        if fill_s is None:
            return None
        before, held_before = self._engine.stats(), sum(lengths.values())
        seconds = []
        for _ in range(num_steps(self._engine.capabilities)):
            began = self._clock()
            is_broken = bool(self._engine.step())
            seconds.append(self._clock() - began)
            if is_broken:
                return None
        self._listen(lengths)
        after, held_after = self._engine.stats(), sum(lengths.values())
        if after.num_preemptions > before.num_preemptions:
            return None
        tokens = self._engine.capabilities.tokens_per_step
        token_s = median(seconds) / tokens
        return _Visit(
            step_s=token_s,
            # The responses were filled by a prefill and a step of several tokens; count one of them.
            fill_s=max(0.0, fill_s - (tokens - 1) * token_s),
            held=point.num_running * point.length + (held_before + held_after) / 2,
            kv_tokens=(before.kv_tokens_used + after.kv_tokens_used) / 2,
        )

    def _fill(self, requests: Sequence[Request], lengths: dict[ResponseId, int]) -> float | None:
        """Seconds until every response has a token; None if the engine cannot run them all at the same time."""
        began = self._clock()
        self._engine.submit(requests)
        while len(lengths) < len(requests):
            if self._engine.step():
                return None
            num_started = len(lengths)
            self._listen(lengths)
            if len(lengths) == num_started >= self._engine.stats().num_running:
                return None  # those that run have begun, and the others find no room
        return self._clock() - began

    def _listen(self, lengths: dict[ResponseId, int]) -> None:
        lengths.update({output.segment.response_id: output.segment.end for output in self._engine.progress()})

    def _requests(self, point: LoadPoint) -> list[Request]:
        random = np.random.default_rng(self._num_visits)
        shape = (point.num_running if self._engine.capabilities.shares_prompts else 1, point.length)
        prompts = random.integers(0, self._vocab_size, shape).astype(np.int32)
        first = self._num_visits * 2**20
        self._num_visits += 1
        length = room(self._engine.capabilities)
        return [
            Request(
                response_id=ResponseId(GroupId("profile", 0, first + member % len(prompts)), member),
                prompt=prompts[member % len(prompts)],
                prefix=prompts[0, :0],
                budget=length,
                sampling=self._sampling,
                forced_length=length,
            )
            for member in range(point.num_running)
        ]


def _joined(point: LoadPoint, visits: Sequence[_Visit]) -> Measurement:
    return Measurement(
        point=point,
        step_s=tuple(visit.step_s for visit in visits),
        fill_s=tuple(visit.fill_s for visit in visits),
        held=fmean(visit.held for visit in visits),
        kv_tokens=fmean(visit.kv_tokens for visit in visits),
    )
