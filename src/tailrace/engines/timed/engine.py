"""The timed engine: keeps the engine contract without a model, and takes as long as a cost model says.

It makes up a response when it is submitted and replays it, one token a step. Before a step returns, the engine sleeps
for the seconds that the cost model gives its load (``core/costs.py``). Everything around it is real: the worker
process, its messages, progress, interrupts, resumes and aborts. So a controller can be measured with many more
instances than there are accelerators. Tokens get the version last pulled; they say nothing about its weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from tailrace.core.costs import StepCoefficients, step_s
from tailrace.core.ids import ResponseId, Version
from tailrace.engines.contract import Output, Request, Stats
from tailrace.engines.replay.engine import ReplayEngine
from tailrace.engines.replay.saved_rollouts import SavedResponse
from tailrace.engines.timed.capabilities import CAPABILITIES
from tailrace.engines.timed.made_up import MadeUpModel
from tailrace.weights.sharding.table import Holding

if TYPE_CHECKING:
    import torch


class TimedCosts(StepCoefficients, Protocol):
    @property
    def prefill_s(self) -> float: ...


class TimedEngine:
    capabilities = CAPABILITIES

    def __init__(
        self, model: MadeUpModel, costs: TimedCosts, *, max_running: int, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._model, self._costs, self._sleep = model, costs, sleep
        self._made_up: dict[ResponseId, SavedResponse] = {}
        """Responses to the requests that were submitted last."""
        self._prompt_lengths: dict[ResponseId, int] = {}
        self._to_prefill: dict[ResponseId, int] = {}
        """Tokens of each live request that it has not computed yet."""
        self._replay = ReplayEngine(lambda each: self._made_up[each], max_running=max_running, name=CAPABILITIES.name)

    def submit(self, requests: Sequence[Request]) -> None:
        self._made_up = {request.response_id: self._model.respond(request) for request in requests}
        self._replay.submit(requests)
        for request in requests:
            self._prompt_lengths[request.response_id] = len(request.prompt)
            self._to_prefill[request.response_id] = len(request.prompt) + len(request.prefix)

    def step(self) -> list[Output]:
        finished = self._replay.step()
        lengths = self._replay.running_lengths()
        lengths |= {output.segment.response_id: output.segment.end for output in finished}
        if lengths:
            self._sleep(self._step_s(lengths))
        self._forget(output.segment.response_id for output in finished)
        return finished

    def progress(self) -> list[Output]:
        return self._replay.progress()

    def interrupt(self, responses: Iterable[ResponseId]) -> list[Output]:
        ended = self._replay.interrupt(responses)
        self._forget(output.segment.response_id for output in ended)
        return ended

    def abort(self, responses: Iterable[ResponseId]) -> None:
        ended = list(responses)
        self._replay.abort(ended)
        self._forget(ended)

    def layout(self) -> Sequence[Holding]:
        return self._replay.layout()

    def pull(self, weights: Sequence[Mapping[str, torch.Tensor]], version: Version) -> None:
        self._replay.pull(weights, version)

    def stats(self) -> Stats:
        return self._replay.stats()

    def release(self) -> None:
        self._replay.release()

    def restore(self) -> None:
        self._replay.restore()

    def _step_s(self, lengths: Mapping[ResponseId, int]) -> float:
        """Seconds of a step of these responses, with the prefill of those that it is the first step of."""
        kv_tokens = sum(self._prompt_lengths[response] + length for response, length in lengths.items())
        prefilled = sum(self._to_prefill.pop(response, 0) for response in lengths)
        return step_s(self._costs, kv_tokens, len(lengths)) + self._costs.prefill_s * prefilled

    def _forget(self, responses: Iterable[ResponseId]) -> None:
        for response in responses:
            for table in (self._prompt_lengths, self._to_prefill):
                table.pop(response, None)
