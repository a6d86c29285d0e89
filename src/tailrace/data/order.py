"""The order in which a source's prompts are visited: a pure function of (seed, source, epoch).

Each epoch visits every prompt once. A cursor (epoch, offset) survives restarts as two numbers, because the order
has no other state. An offer that reaches the end of an epoch continues with the next one; each prompt in it says which
epoch it belongs to.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    prompts: tuple[tuple[int, int], ...]
    """(epoch, prompt index) of each prompt."""
    next_epoch: int
    next_offset: int


class PromptOrder(Protocol):
    """Gives the prompts after a cursor. Equal cursors give equal prompts; no (epoch, prompt index) comes twice."""

    def ids(self, epoch: int, offset: int, count: int) -> Offer: ...


class SourceOrder:
    """The order of one source. Caches the permutation of the last epoch that was asked for."""

    def __init__(self, indices: Sequence[int], *, source: str, seed: int, shuffle: bool) -> None:
        if not indices:
            raise ValueError(f"source {source!r} has no prompts to order")
        self._indices = tuple(indices)
        self._source, self._seed, self._shuffle = source, seed, shuffle
        self._epoch: int | None = None
        self._permutation: tuple[int, ...] = ()

    def ids(self, epoch: int, offset: int, count: int) -> Offer:
        """The next `count` prompts after the cursor, and the cursor after them."""
        if epoch < 0 or count < 0 or not 0 <= offset < len(self._indices):
            raise ValueError(
                f"source {self._source!r} of {len(self._indices)} prompts has no cursor "
                f"(epoch {epoch}, offset {offset}) from which to offer {count}"
            )
        prompts: list[tuple[int, int]] = []
        while len(prompts) < count:
            visited = self.permutation(epoch)[offset : offset + count - len(prompts)]
            prompts += [(epoch, index) for index in visited]
            offset += len(visited)
            if offset == len(self._indices):
                epoch, offset = epoch + 1, 0
        return Offer(prompts=tuple(prompts), next_epoch=epoch, next_offset=offset)

    def permutation(self, epoch: int) -> tuple[int, ...]:
        """Every prompt index once, in the order of this epoch."""
        if not self._shuffle:
            return self._indices
        if epoch != self._epoch:
            shuffled = list(self._indices)
            random.Random(f"{self._seed}/{self._source}/{epoch}").shuffle(shuffled)
            self._epoch, self._permutation = epoch, tuple(shuffled)
        return self._permutation
