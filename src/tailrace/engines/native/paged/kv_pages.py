"""The pages of every running sequence. No tensors.

The KV cache is a pool of pages of ``page_size`` positions. A sequence's pages are listed in its row of ``blocks``.
Promises:

* every listed page is counted once for each sequence that lists it, and is free when nobody does;
* sequences with the same prompt list the same pages for the part of it that fills whole pages. The positions after
  that are in pages of their own, so nobody writes into a page that another sequence reads;
* ``used_tokens`` is the size of all pages that are not free.

The same questions are answered by ``RowTable``, which keeps every sequence in one row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tailrace.engines.native.rows import Row, RowMove, RowTransfer


class PageTable:
    def __init__(self, *, num_slots: int, max_length: int, num_pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.num_pages = num_pages
        self.blocks: NDArray[np.int32] = np.zeros((num_slots, -(-max_length // page_size)), np.int32)
        """For each slot, its pages in order. Entries behind the last page mean nothing."""
        self._counts: NDArray[np.int64] = np.zeros(num_slots, np.int64)
        self._num_users: NDArray[np.int64] = np.zeros(num_pages, np.int64)
        self._free = list(range(num_pages - 1, -1, -1))
        self._changed: set[int] = set()

    @property
    def used_tokens(self) -> int:
        return (self.num_pages - len(self._free)) * self.page_size

    @property
    def extents(self) -> list[int]:
        """A pool does not grow."""
        return []

    def charge(self, length: int, num_shared: int = 0) -> int:
        """Tokens of the KV budget that a sequence takes, if it shares its first ``num_shared`` tokens."""
        return (self._pages_for(length) - num_shared // self.page_size) * self.page_size

    def capacity(self, slot: int) -> int:
        return int(self._counts[slot]) * self.page_size

    def place(self, slot: int, length: int, *, leader: int | None = None, num_shared: int = 0) -> None:
        """Give a slot its pages. The first ``num_shared`` tokens are the same as those of ``leader``."""
        if self._counts[slot]:
            raise ValueError(f"slot {slot} already has pages")
        shared = [] if leader is None else self.blocks[leader, : num_shared // self.page_size].tolist()
        self._append(slot, shared)
        self._append(slot, self._take(self._pages_for(length) - len(shared)))

    def remove(self, slot: int) -> None:
        pages = self.blocks[slot, : self._counts[slot]]
        self._num_users[pages] -= 1
        self._free += pages[self._num_users[pages] == 0].tolist()
        self._counts[slot] = 0
        self._changed.discard(slot)

    def grow(self, slot: int, length: int) -> list[RowMove]:
        """Add pages up to this length. Nothing moves."""
        self._append(slot, self._take(self._pages_for(length) - int(self._counts[slot])))
        return []

    def compact(self) -> list[RowMove]:
        return []

    def copy_prompt(self, leader: int, slot: int, num_shared: int) -> RowTransfer | None:
        """The copy that completes a shared prompt: the positions behind the pages that both list."""
        page, count = divmod(num_shared, self.page_size)
        if not count:
            return None
        source, target = int(self.blocks[leader, page]), int(self.blocks[slot, page])
        return RowTransfer(source=Row(0, source), target=Row(0, target), count=count)

    def take_changed(self) -> NDArray[np.int64]:
        """The slots whose row of ``blocks`` has changed since the last call."""
        changed = np.array(sorted(self._changed), np.int64)
        self._changed.clear()
        return changed

    def check(self) -> None:
        """Assert every promise that must hold between two calls."""
        listed = np.zeros(self.num_pages, np.int64)
        for slot, count in enumerate(self._counts.tolist()):
            np.add.at(listed, self.blocks[slot, :count], 1)
        assert (listed == self._num_users).all()
        assert sorted(self._free) == np.flatnonzero(listed == 0).tolist()

    def _pages_for(self, length: int) -> int:
        return -(-length // self.page_size)

    def _take(self, count: int) -> list[int]:
        if count > len(self._free):
            raise RuntimeError(f"{count} pages are needed, {len(self._free)} of {self.num_pages} are free")
        return [self._free.pop() for _ in range(count)]

    def _append(self, slot: int, pages: list[int]) -> None:
        start = int(self._counts[slot])
        self.blocks[slot, start : start + len(pages)] = pages
        self._num_users[pages] += 1
        self._counts[slot] = start + len(pages)
        self._changed.add(slot)
