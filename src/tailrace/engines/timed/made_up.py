"""Made-up responses: every token is drawn from the same distribution, whatever came before it.

The probability of token i is proportional to 1 / (i + 2). Smaller ids are likelier, so top-k, top-p and min-p each
keep the tokens with the smallest ids. Responses end by stop tokens, stop strings, budget or forced length, as with
any engine.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.core.ids import ResponseId
from tailrace.core.responses.response import Finish
from tailrace.engines.contract import Request, Sampling, Unsupported
from tailrace.engines.native.randomness import stream_key, uniforms
from tailrace.engines.replay.saved_rollouts import SavedResponse
from tailrace.engines.stop_strings import DecodeText, ends_with_stop
from tailrace.store.segment import ResponsePayload, Tokens


class _Distribution(NamedTuple):
    cumulative: NDArray[np.float64]
    """Sums of the probabilities of the tokens that may be sampled; the last is 1."""
    logprobs: NDArray[np.float32]
    """Log-probs of the tokens that may be sampled."""
    behaviour_logprobs: NDArray[np.float32]
    """Log-probs of all tokens, before top-k, top-p and min-p."""


class MadeUpModel:
    def __init__(self, vocabulary_size: int, *, seed: int, decode_text: DecodeText | None = None) -> None:
        self._scores: NDArray[np.float64] = -np.log(np.arange(vocabulary_size) + 2.0)
        self._seed, self._decode_text = seed, decode_text
        self._distribution = cache(self._make_distribution)

    def logits(self) -> NDArray[np.float64]:
        """The logits of every position."""
        return self._scores

    def respond(self, request: Request) -> SavedResponse:
        """The whole response to a request: its prefix, and made-up tokens up to the end."""
        start = len(request.prefix)
        last = max(start, request.end)
        distribution = self._distribution(request.sampling)
        positions = np.arange(start, last)
        drawn = self._draw(request.response_id, positions, distribution)
        count, finish = self._end(request, drawn)
        drawn = drawn[:count]
        unknown = np.zeros(start, np.float32)  # the prefix comes from elsewhere, and is not returned again
        response = ResponsePayload(
            response_id=request.response_id,
            tokens=np.concatenate([request.prefix, drawn]).astype(np.int32),
            logprobs=np.concatenate([unknown, distribution.logprobs[drawn]]),
            behaviour_logprobs=np.concatenate([unknown, distribution.behaviour_logprobs[drawn]]),
            mask=np.ones(start + count, np.uint8),
            versions=(),
        )
        return SavedResponse(response=response, finish=finish)

    def _draw(self, response: ResponseId, positions: NDArray[np.int64], distribution: _Distribution) -> Tokens:
        key = np.full(len(positions), stream_key(self._seed, response))
        return np.searchsorted(distribution.cumulative, uniforms(key, positions), side="right").astype(np.int32)

    def _end(self, request: Request, drawn: Tokens) -> tuple[int, Finish]:
        """How many of the drawn tokens the response has, and why it ends there."""
        if request.forced_length is not None:
            return len(drawn), request.finish_at_end
        ends = np.flatnonzero(np.isin(drawn, request.sampling.stop_token_ids))
        count = int(ends[0]) + 1 if len(ends) else None
        if request.sampling.stop_strings:
            by_string = self._string_end(request, drawn if count is None else drawn[:count])
            count = count if by_string is None else by_string
        return (len(drawn), Finish.LENGTH) if count is None else (count, Finish.STOP)

    def _string_end(self, request: Request, drawn: Tokens) -> int | None:
        if self._decode_text is None:
            raise Unsupported(f"{request.response_id} has stop strings, but the timed engine was given no decoder")
        tokens, start = np.concatenate([request.prefix, drawn]), len(request.prefix)
        for count in range(1, len(drawn) + 1):
            if ends_with_stop(tokens[: start + count], request.sampling.stop_strings, self._decode_text):
                return count
        return None

    def _make_distribution(self, sampling: Sampling) -> _Distribution:
        is_greedy = sampling.temperature == 0
        full = _log_softmax(self._scores if is_greedy else self._scores / sampling.temperature)
        num_kept = 1 if is_greedy else _num_kept(np.exp(full), sampling)
        kept = full[:num_kept] if is_greedy else _log_softmax(full[:num_kept])
        cumulative = np.cumsum(np.exp(kept))
        cumulative[-1] = 1.0
        return _Distribution(cumulative, kept.astype(np.float32), full.astype(np.float32))


def _num_kept(probabilities: NDArray[np.float64], sampling: Sampling) -> int:
    """Number of tokens that top-k, then top-p over what it left, then min-p keep. Probabilities are descending."""
    kept = probabilities[: sampling.top_k]
    before = np.cumsum(kept) - kept
    kept = kept[before < sampling.top_p * kept.sum()]
    return int(np.count_nonzero(kept >= sampling.min_p * kept[0]))


def _log_softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = scores - scores.max()
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return result
