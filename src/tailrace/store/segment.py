"""The data-plane record: a run of response tokens with everything training needs to know about them.

For every segment ``len(tokens) == len(logprobs) == len(mask)`` and, when sampling was truncated,
``len(behaviour_logprobs)`` too, and ``len(routing)`` where an engine returns it. The segments of a response, in order
of ``start``, cover it without hole or overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tailrace.core.ids import ResponseId, Version

Tokens = NDArray[np.int32]
Logprobs = NDArray[np.float32]
Mask = NDArray[np.uint8]
Routing = NDArray[np.int16]
"""Experts of a mixture: tokens x layers with a router x experts per token. -1: unknown."""
UNKNOWN_EXPERT = -1
_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    response_id: ResponseId
    start: int
    """Position of the first token in the response."""
    version: Version | None
    """The weights that produced the tokens; None for tokens that were not generated (tool results)."""
    tokens: Tokens
    logprobs: Logprobs
    """Log-probs under the distribution that was sampled from, after top-p, top-k and min-p."""
    behaviour_logprobs: Logprobs | None = None
    """Log-probs of the policy that generated the token, before top-p, top-k or min-p: training can compute no truncated
    ones, so these are what it compares with. None if none of them was used (then equal to ``logprobs``)."""
    mask: Mask
    """1 where the token takes part in the loss."""
    routing: Routing | None = None
    """Experts that the network chose where it predicted each token, which is the position before the token; None if the
    model is no mixture or the engine does not return them."""

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsePayload:
    """All of a response's segments, joined."""

    response_id: ResponseId
    tokens: Tokens
    logprobs: Logprobs
    behaviour_logprobs: Logprobs
    mask: Mask
    versions: tuple[tuple[Version | None, int], ...]
    """Run-length encoded: (version, number of tokens), never decreasing."""
    routing: Routing | None = None
    """As in ``Segment``; segments without it are unknown. None if no segment has it."""

    def __len__(self) -> int:
        return len(self.tokens)


def join(response: ResponseId, segments: Sequence[Segment]) -> ResponsePayload:
    """Concatenate segments that cover the response without hole or overlap."""
    position = 0
    versions: list[tuple[Version | None, int]] = []
    for segment in segments:
        if segment.response_id != response or segment.start != position:
            raise ValueError(f"{response}: a segment starts at {segment.start}, expected {position}")
        position = segment.end
        if versions and versions[-1][0] == segment.version:
            versions[-1] = (segment.version, versions[-1][1] + len(segment.tokens))
        elif len(segment.tokens):
            versions.append((segment.version, len(segment.tokens)))
    return ResponsePayload(
        response_id=response,
        tokens=_cat([s.tokens for s in segments], np.int32),
        logprobs=_cat([s.logprobs for s in segments], np.float32),
        behaviour_logprobs=_cat(
            [s.logprobs if s.behaviour_logprobs is None else s.behaviour_logprobs for s in segments], np.float32
        ),
        mask=_cat([s.mask for s in segments], np.uint8),
        versions=tuple(versions),
        routing=_join_routing(segments),
    )


def _join_routing(segments: Sequence[Segment]) -> Routing | None:
    found = [segment.routing for segment in segments if segment.routing is not None]
    if not found:
        return None
    one_token = found[0].shape[1:]
    return np.concatenate(
        [
            np.full((len(segment.tokens), *one_token), UNKNOWN_EXPERT, np.int16)
            if segment.routing is None
            else segment.routing
            for segment in segments
        ]
    )


def _cat(arrays: Sequence[NDArray[_Scalar]], dtype: type[_Scalar]) -> NDArray[_Scalar]:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)
