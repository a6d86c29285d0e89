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
from tailrace.core.ids import TrajectoryId, Version
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
        self._made_up: dict[TrajectoryId, SavedResponse] = {}
        """Responses to the requests that were submitted last."""
        self._prompt_lengths: dict[TrajectoryId, int] = {}
        self._to_prefill: dict[TrajectoryId, int] = {}
        """Tokens of each live request that it has not computed yet."""
        self._replay = ReplayEngine(lambda each: self._made_up[each], max_running=max_running, name=CAPABILITIES.name)

    def submit(self, requests: Sequence[Request]) -> None:
        self._made_up = {request.trajectory: self._model.respond(request) for request in requests}
        self._replay.submit(requests)
        for request in requests:
            self._prompt_lengths[request.trajectory] = len(request.prompt)
            self._to_prefill[request.trajectory] = len(request.prompt) + len(request.prefix)

    def step(self) -> list[Output]:
        finished = self._replay.step()
        lengths = self._replay.running_lengths()
        lengths |= {output.segment.trajectory: output.segment.end for output in finished}
        if lengths:
            self._sleep(self._step_s(lengths))
        self._forget(output.segment.trajectory for output in finished)
        return finished

    def progress(self) -> list[Output]:
        return self._replay.progress()

    def interrupt(self, trajectories: Iterable[TrajectoryId]) -> list[Output]:
        ended = self._replay.interrupt(trajectories)
        self._forget(output.segment.trajectory for output in ended)
        return ended

    def abort(self, trajectories: Iterable[TrajectoryId]) -> None:
        ended = list(trajectories)
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

    def _step_s(self, lengths: Mapping[TrajectoryId, int]) -> float:
        """Seconds of a step of these responses, with the prefill of those that it is the first step of."""
        kv_tokens = sum(self._prompt_lengths[trajectory] + length for trajectory, length in lengths.items())
        prefilled = sum(self._to_prefill.pop(trajectory, 0) for trajectory in lengths)
        return step_s(self._costs, kv_tokens, len(lengths)) + self._costs.prefill_s * prefilled

    def _forget(self, trajectories: Iterable[TrajectoryId]) -> None:
        for trajectory in trajectories:
            for table in (self._prompt_lengths, self._to_prefill):
                table.pop(trajectory, None)
