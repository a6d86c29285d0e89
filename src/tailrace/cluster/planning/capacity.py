"""How many nodes of the cluster are free in each slot of the ring.

A segment tree: node ``k`` has the children ``2k`` and ``2k + 1``. ``_least[k]`` is the minimum over the slots below
``k``, without what was added at nodes above it; ``_added[k]`` was added to all slots below ``k``. Nothing is ever
pushed down. Slot ``s`` is leaf ``_size + 1 + s``: the leaves before the first slot and after the last one let a range
be walked between two open borders.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from operator import add

_NO_SLOT = 1 << 60
"""Value of a leaf that is not a slot: it is never the minimum."""


class CapacityProfile:
    __slots__ = ("_added", "_least", "_size", "num_slots")

    def __init__(self, num_slots: int, capacity: int) -> None:
        if num_slots < 1:
            raise ValueError(f"a ring needs at least one slot, got {num_slots}")
        self.num_slots = num_slots
        self._size = 1 << (num_slots + 1).bit_length()
        least = [_NO_SLOT] * (2 * self._size)
        least[self._size + 1 : self._size + 1 + num_slots] = [capacity] * num_slots
        for node in range(self._size - 1, 0, -1):
            least[node] = min(least[2 * node], least[2 * node + 1])
        self._least = least
        self._added = [0] * (2 * self._size)

    def add(self, start: int, count: int, amount: int) -> None:
        """Add ``amount`` to ``count`` slots from ``start``, across the seam if need be."""
        for low, high in self._pieces(start, count):
            self._add(low, high, amount)

    def minimum(self, start: int, count: int) -> int:
        return min(self._minimum(low, high) for low, high in self._pieces(start, count))

    @property
    def overall_minimum(self) -> int:
        return self._least[1]

    def last_below(self, start: int, count: int, amount: int) -> int | None:
        """Slots from ``start`` to the last of the ``count`` slots whose value is below ``amount``; None: no slot is."""
        for low, high in reversed(self._pieces(start, count)):
            slot = self._last_below(1, self._size, low + 1, high + 1, amount)
            if slot is not None:
                return (slot - 1 - start) % self.num_slots
        return None

    def values(self) -> list[int]:
        """Value of each slot."""
        above, first = [self._added[1]], 2  # what was added at nodes above the level that begins at ``first``
        while first < self._size:
            above = list(map(add, _twice_each(above), self._added[first : 2 * first]))
            first *= 2
        return list(map(add, _twice_each(above), self._least[first:]))[1 : 1 + self.num_slots]

    def _pieces(self, start: int, count: int) -> list[tuple[int, int]]:
        if not (0 <= start < self.num_slots and 0 < count <= self.num_slots):
            raise ValueError(f"a ring of {self.num_slots} slots has no {count} slots from slot {start}")
        end = start + count
        return [(start, end)] if end <= self.num_slots else [(start, self.num_slots), (0, end - self.num_slots)]

    def _add(self, low: int, high: int, amount: int) -> None:
        least, added = self._least, self._added
        left, right = self._size + low, self._size + high + 1
        while left ^ right != 1:
            if not left & 1:
                least[left + 1] += amount
                added[left + 1] += amount
            if right & 1:
                least[right - 1] += amount
                added[right - 1] += amount
            left, right = left >> 1, right >> 1
            # Not ``min``: calls cost more than the rest of the loop.
            first, second = least[2 * left], least[2 * left + 1]
            least[left] = (first if first < second else second) + added[left]
            first, second = least[2 * right], least[2 * right + 1]
            least[right] = (first if first < second else second) + added[right]
        while left > 1:
            left >>= 1
            first, second = least[2 * left], least[2 * left + 1]
            least[left] = (first if first < second else second) + added[left]

    def _minimum(self, low: int, high: int) -> int:
        least, added = self._least, self._added
        left, right = self._size + low, self._size + high + 1
        left_least = right_least = _NO_SLOT
        while left ^ right != 1:
            if not left & 1:
                left_least = min(left_least, least[left ^ 1])
            if right & 1:
                right_least = min(right_least, least[right ^ 1])
            left, right = left >> 1, right >> 1
            left_least += added[left]
            right_least += added[right]
        result = min(left_least, right_least)
        while left > 1:
            left >>= 1
            result += added[left]
        return result

    def _last_below(self, node: int, width: int, low: int, high: int, amount: int) -> int | None:
        """Last leaf under ``node`` in [low, high) with a value below ``amount``, counted from the node's first leaf."""
        if high <= 0 or low >= width or self._least[node] >= amount:
            return None
        if node >= self._size:
            return 0
        half, amount = width >> 1, amount - self._added[node]
        found = self._last_below(2 * node + 1, half, low - half, high - half, amount)
        if found is not None:
            return found + half
        return self._last_below(2 * node, half, low, high, amount)


def _twice_each(values: list[int]) -> Iterable[int]:
    """A value for both children of each node."""
    return chain.from_iterable(zip(values, values, strict=True))
