"""What every engine with a model refuses: requests that it cannot serve, and changes under live requests.

An engine checks all requests of a call before it accepts the first. Adapters are the engine's own matter.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tailrace.core.ids import ResponseId
from tailrace.engines.contract import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    max_length: int
    """Most tokens of prompt and response together."""
    vocab_size: int
    finds_stop_strings: bool
    """Whether the engine can decode tokens, which stop strings need."""

    def check(self, requests: Sequence[Request], live: Collection[ResponseId]) -> None:
        """Raise ``ValueError`` if the engine cannot accept all of these. ``live``: requests it has accepted before."""
        if len({request.response_id for request in requests}) < len(requests):
            raise ValueError("a response was submitted twice in one call")
        for request in requests:
            if request.response_id in live:
                raise ValueError(f"{request.response_id} is already live")
            self._check_length(request)
            self._check_tokens(request)

    def _check_length(self, request: Request) -> None:
        name = request.response_id
        if not len(request.prompt):
            raise ValueError(f"{name} has an empty prompt")
        if request.forced_length is not None and request.forced_length > request.budget:
            raise ValueError(f"{name}: forced_length {request.forced_length} exceeds the budget {request.budget}")
        total = len(request.prompt) + max(request.budget, len(request.prefix))
        if total > self.max_length:
            raise ValueError(f"{name}: prompt and budget are {total} tokens, max_length is {self.max_length}")

    def _check_tokens(self, request: Request) -> None:
        name = request.response_id
        for part in (request.prompt, request.prefix):
            if len(part) and not 0 <= part.min() <= part.max() < self.vocab_size:
                raise ValueError(f"{name} has a token outside the vocabulary of {self.vocab_size}")
        if request.sampling.stop_strings and not self.finds_stop_strings:
            raise ValueError(f"{name} has stop strings, but the engine was built without decode_text")


def refuse_while_live(action: str, live: Collection[ResponseId]) -> None:
    """Raise ``RuntimeError`` if there are live requests. ``action``: what was asked for."""
    if live:
        raise RuntimeError(f"cannot {action}: {len(live)} requests are live, the first {next(iter(live))}")
