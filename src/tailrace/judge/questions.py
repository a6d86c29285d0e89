"""The general question to a model: how likely are these tokens at these positions?

L tokens, P positions, K candidates at each position.

A judge asks for its answer words behind the last token. A teacher asks for the token that follows, at every position.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Question:
    tokens_L: NDArray[np.int32]
    positions_P: NDArray[np.int64]
    """Places in ``tokens_L``. Position p asks what follows the tokens up to and with p."""
    candidates_PK: NDArray[np.int32]
    """Tokens whose log-probs are wanted, at each position."""

    def __post_init__(self) -> None:
        length, num_positions = len(self.tokens_L), len(self.positions_P)
        if not length or not num_positions:
            raise ValueError(f"a question needs tokens and positions, got {length} and {num_positions}")
        if self.candidates_PK.shape[:1] != (num_positions,) or self.candidates_PK.ndim != 2:
            shape = self.candidates_PK.shape
            raise ValueError(f"{num_positions} positions need as many rows of candidates, got {shape}")
        if self.positions_P.min() < 0 or self.positions_P.max() >= length:
            wrong = sorted({int(self.positions_P.min()), int(self.positions_P.max())})
            raise ValueError(f"positions must be from 0 to {length - 1}, got {wrong}")

    @classmethod
    def about_the_end(cls, tokens: NDArray[np.int32], candidates: NDArray[np.int32]) -> Question:
        """Which of the candidates follows the last token."""
        return cls(tokens_L=tokens, positions_P=np.array([len(tokens) - 1]), candidates_PK=candidates[None])

    @classmethod
    def about_each_token(cls, tokens: NDArray[np.int32], *, start: int) -> Question:
        """How likely is each token from ``start`` on, given those before it: what a teacher says to a response."""
        return cls(
            tokens_L=tokens, positions_P=np.arange(start - 1, len(tokens) - 1), candidates_PK=tokens[start:, None]
        )

    def check(self, vocab_size: int) -> None:
        """``ValueError`` if the model has no such token. On a GPU it would end the process."""
        for what, tokens in (("tokens", self.tokens_L), ("candidates", self.candidates_PK)):
            if tokens.size and not (tokens.min() >= 0 and tokens.max() < vocab_size):
                raise ValueError(f"{what} must be from 0 to {vocab_size - 1}, got {tokens.min()} to {tokens.max()}")
