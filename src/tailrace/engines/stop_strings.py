"""Detects stop strings in the tokens of a response, for every engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tailrace.store.segment import Tokens

DecodeText = Callable[[Sequence[int]], str]

_MARGIN_TOKENS = 8


def stop_length(response: Tokens, num_new: int, stop_strings: Sequence[str], decode_text: DecodeText) -> int | None:
    """Tokens up to and with the first of the ``num_new`` newest ones that completes a stop string; None: none does."""
    if not _has_stop(response, num_new, stop_strings, decode_text):
        return None  # the usual case takes one look at all new tokens
    lengths = range(len(response) - num_new + 1, len(response) + 1)
    return next((length for length in lengths if _has_stop(response[:length], 1, stop_strings, decode_text)), None)


def ends_with_stop(response: Sequence[int] | Tokens, stop_strings: Sequence[str], decode_text: DecodeText) -> bool:
    """Whether the newest token completes a stop string."""
    return _has_stop(response, 1, stop_strings, decode_text)


def _has_stop(
    response: Sequence[int] | Tokens, num_new: int, stop_strings: Sequence[str], decode_text: DecodeText
) -> bool:
    """Whether a stop string ends in the newest tokens. Only the last tokens that can matter are decoded."""
    longest = max(map(len, stop_strings))
    old = longest + _MARGIN_TOKENS
    while True:
        text = decode_text(np.asarray(response[-(old + num_new - 1) :]).tolist())
        if len(text) >= longest + _MARGIN_TOKENS + num_new - 1 or old + num_new > len(response):
            return any(stop in text for stop in stop_strings)
        old *= 2
