"""Stop tokens, in a table that is looked up for a whole batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tailrace.store.segment import Tokens


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
