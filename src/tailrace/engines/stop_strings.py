"""Detects stop strings in the tokens of a response, for every engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tailrace.store.segment import Tokens

DecodeText = Callable[[Sequence[int]], str]

_MARGIN_TOKENS = 8


def ends_with_stop(response: Sequence[int] | Tokens, stop_strings: Sequence[str], decode_text: DecodeText) -> bool:
    """Whether the newest token completes a stop string. Only the last tokens that can matter are decoded."""
    longest = max(map(len, stop_strings))
    num_tokens = longest + _MARGIN_TOKENS
    while True:
        text = decode_text(np.asarray(response[-num_tokens:]).tolist())
        if len(text) >= longest + _MARGIN_TOKENS or num_tokens >= len(response):
            return any(stop in text for stop in stop_strings)
        num_tokens *= 2
