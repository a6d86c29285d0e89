"""Detects the end of a response: by stop tokens (a table, looked up for a whole batch) and by stop strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tailrace.store.segment import Tokens

DecodeText = Callable[[Sequence[int]], str]

_MARGIN_TOKENS = 8


class StopTable:
    """One row per distinct set of stop tokens; row 0 stops at nothing."""

    def __init__(self, vocab_size: int) -> None:
        self._rows: dict[frozenset[int], int] = {frozenset(): 0}
        self._table: NDArray[np.bool_] = np.zeros((1, vocab_size), np.bool_)

    def register(self, token_ids: Sequence[int]) -> int:
        """The row of this set of stop tokens; a new row if the set is new."""
        tokens = frozenset(token_ids)
        if tokens not in self._rows:
            row = np.zeros((1, self._table.shape[1]), np.bool_)
            row[0, [token for token in tokens if 0 <= token < row.shape[1]]] = True
            self._rows[tokens] = len(self._table)
            self._table = np.concatenate([self._table, row])
        return self._rows[tokens]

    def is_stop(self, stop_sets: NDArray[np.int64], tokens: Tokens) -> NDArray[np.bool_]:
        return self._table[stop_sets, tokens]


def ends_with_stop(response: Tokens, stop_strings: Sequence[str], decode_text: DecodeText) -> bool:
    """Whether the newest token completes a stop string. Only the last tokens that can matter are decoded."""
    longest = max(map(len, stop_strings))
    num_tokens = longest + _MARGIN_TOKENS
    while True:
        text = decode_text(response[-num_tokens:].tolist())
        if len(text) >= longest + _MARGIN_TOKENS or num_tokens >= len(response):
            return any(stop in text for stop in stop_strings)
        num_tokens *= 2
