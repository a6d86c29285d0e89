"""The replay engine: keeps the engine contract without a model.

It returns the saved tokens and log-probs of each response, one token a step, so that progress, interrupt and resume
work as with any engine. Tokens get the version last pulled, not the version that generated them. If the budget is below
the saved length, the response is cut there. Stop tokens, stop strings and sampling parameters are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from tailrace.core.ids import ResponseId, Version
from tailrace.core.responses.response import Finish
from tailrace.engines.contract import Output, Request, Stats, Unservable, Unsupported
from tailrace.engines.replay.capabilities import CAPABILITIES
from tailrace.engines.replay.saved_rollouts import SavedResponse
from tailrace.store.segment import ResponsePayload, Segment
from tailrace.weights.sharding.table import Holding

if TYPE_CHECKING:
    import torch


@dataclass(slots=True, kw_only=True)
class _Playback:
    response: ResponsePayload
    is_truncated: bool
    """Whether the tokens were sampled with top-p, top-k or min-p."""
    end: int
    """Number of tokens at which the response ends."""
    finish: Finish
    position: int
    """Number of tokens replayed so far, the prefix included."""
    returned: int
    """Number of tokens already returned, the prefix included."""


class ReplayEngine:
    capabilities = CAPABILITIES

    def __init__(
        self, find: Callable[[ResponseId], SavedResponse], *, max_running: int, name: str = CAPABILITIES.name
    ) -> None:
        """``name``: the engine's name in messages, if another engine replays with this one."""
        self._find, self._max_running, self._name = find, max_running, name
        self._waiting: dict[ResponseId, _Playback] = {}
        self._running: dict[ResponseId, _Playback] = {}
        self._version = Version(0)
        self._is_released = self._needs_weights = False

    def submit(self, requests: Sequence[Request]) -> None:
        if self._is_released or self._needs_weights:
            raise RuntimeError("the engine was released: restore it and pull weights before submitting")
        for request in requests:
            if request.response_id in self._waiting or request.response_id in self._running:
                raise ValueError(f"{request.response_id} is live already")
            if request.adapter is not None:
                raise Unsupported(f"{request.response_id} names an adapter; the {self._name} engine serves no adapters")
        self._waiting |= {request.response_id: _play(request, self._find(request.response_id)) for request in requests}

    def step(self) -> list[Output]:
        self._admit()
        finished = []
        for playback in self._running.values():
            playback.position = min(playback.position + 1, playback.end)
            if playback.position == playback.end:
                finished.append(self._output(playback, playback.finish))
        for output in finished:
            del self._running[output.segment.response_id]
        return finished

    def progress(self) -> list[Output]:
        return [self._output(p, None) for p in self._running.values() if p.position > p.returned]

    def interrupt(self, responses: Iterable[ResponseId]) -> list[Output]:
        ended = (self._release(response) for response in responses)
        return [self._output(playback, Finish.INTERRUPTED) for playback in ended if playback is not None]

    def abort(self, responses: Iterable[ResponseId]) -> None:
        for response in responses:
            self._release(response)

    def running_lengths(self) -> dict[ResponseId, int]:
        """Tokens that each running response has so far, its prefix included."""
        return {response: playback.position for response, playback in self._running.items()}

    def layout(self) -> tuple[Holding, ...]:
        return ()  # it has no model

    def pull(self, weights: Sequence[Mapping[str, torch.Tensor]], version: Version) -> None:
        self._refuse_live("pull weights")
        self._version, self._needs_weights = version, False

    def stats(self) -> Stats:
        return Stats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            kv_tokens_used=0,
            kv_tokens_budget=0,
            num_preemptions=0,
            version=self._version,
        )

    def release(self) -> None:
        self._refuse_live("release memory")
        self._is_released = self._needs_weights = True

    def restore(self) -> None:
        self._is_released = False

    def _admit(self) -> None:
        for response in list(islice(self._waiting, self._max_running - len(self._running))):
            self._running[response] = self._waiting.pop(response)

    def _release(self, response: ResponseId) -> _Playback | None:
        return self._waiting.pop(response, None) or self._running.pop(response, None)

    def _refuse_live(self, what: str) -> None:
        if live := len(self._waiting) + len(self._running):
            raise RuntimeError(f"cannot {what} with {live} live requests")

    def _output(self, playback: _Playback, finish: Finish | None) -> Output:
        response, part = playback.response, slice(playback.returned, playback.position)
        playback.returned = playback.position
        segment = Segment(
            response_id=response.response_id,
            start=part.start,
            version=self._version,
            tokens=response.tokens[part],
            logprobs=response.logprobs[part],
            behaviour_logprobs=response.behaviour_logprobs[part] if playback.is_truncated else None,
            mask=response.mask[part],
            routing=None if response.routing is None else response.routing[part],
        )
        return Output(segment=segment, finish=finish)


def _play(request: Request, saved: SavedResponse) -> _Playback:
    response, tokens, start = request.response_id, saved.response.tokens, len(request.prefix)
    if not np.array_equal(tokens[:start], request.prefix):
        raise Unservable(f"the saved response {response} does not begin with the {start} tokens to go on from")
    if request.forced_length is not None and request.forced_length > len(tokens):
        raise Unservable(f"the saved response {response} has {len(tokens)} tokens, not {request.forced_length}")
    end = min(len(tokens), request.end)
    is_whole = end == len(tokens) and request.forced_length is None
    finish = saved.finish if is_whole else request.finish_at_end
    is_truncated = not np.array_equal(saved.response.behaviour_logprobs, saved.response.logprobs)
    return _Playback(
        response=saved.response, is_truncated=is_truncated, end=end, finish=finish, position=start, returned=start
    )
