"""Busy slots of one node group on a ring.

The ring has the slots ``0 .. length - 1``; slot ``length - 1`` is followed by slot 0. Busy slots are kept as half-open
intervals ``[start, end)`` with ``0 <= start < end <= length``, sorted, disjoint and as long as possible. Two busy
stretches that meet at the seam (one ends at ``length``, the other starts at 0) stay two intervals. So each set of busy
slots has exactly one form, and taking away what was added gives back the same intervals.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise


class IntervalSet:
    __slots__ = ("_ends", "_starts", "length")

    def __init__(self, length: int) -> None:
        if length < 1:
            raise ValueError(f"a ring needs at least one slot, got {length}")
        self.length = length
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IntervalSet):
            return NotImplemented
        return (self.length, self._starts, self._ends) == (other.length, other._starts, other._ends)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"IntervalSet({self.length}, {self.intervals})"

    @property
    def intervals(self) -> list[tuple[int, int]]:
        """Busy stretches as (start, end)."""
        return list(zip(self._starts, self._ends, strict=True))

    @property
    def num_busy(self) -> int:
        return sum(self._ends) - sum(self._starts)

    @property
    def is_empty(self) -> bool:
        return not self._starts

    def copy(self) -> IntervalSet:
        new = IntervalSet(self.length)
        new._starts, new._ends = self._starts.copy(), self._ends.copy()
        return new

    def busy_end(self, start: int, count: int) -> int | None:
        """Slots from ``start`` to the end of the last busy interval that touches the ``count`` slots from ``start``.

        None: all of them are free. Otherwise no shift to the right by less than the result makes them free: until then
        the range still contains a slot of that interval. So a search may jump by the result.
        """
        end = start + count
        if end > self.length:
            if self._starts and self._starts[0] < end - self.length:
                return self.length - start + self._ends[bisect_left(self._starts, end - self.length) - 1]
            end = self.length
        index = bisect_left(self._starts, end) - 1
        if index < 0 or self._ends[index] <= start:
            return None
        return self._ends[index] - start

    def is_free(self, start: int, count: int) -> bool:
        return all(self._is_free(*piece) for piece in self._pieces(start, count))

    def add(self, start: int, count: int) -> None:
        """Make slots busy. They must be free."""
        pieces = self._pieces(start, count)
        if not all(self._is_free(*piece) for piece in pieces):
            raise ValueError(f"slots {start} to {start + count} are not all free")
        for piece in pieces:
            self._add(*piece)

    def remove(self, start: int, count: int) -> None:
        """Make slots free. They must be busy."""
        pieces = self._pieces(start, count)
        if not all(self._is_busy(*piece) for piece in pieces):
            raise ValueError(f"slots {start} to {start + count} are not all busy")
        for piece in pieces:
            self._remove(*piece)

    def free_windows(self) -> list[tuple[int, int]]:
        """Free stretches of the ring as (start, count), as long as possible. One that crosses the seam comes last."""
        if not self._starts:
            return [(0, self.length)]
        bounds = zip([0, *self._ends], [*self._starts, self.length], strict=True)
        windows = [(start, end - start) for start, end in bounds if start < end]
        if len(windows) > 1 and windows[0][0] == 0 and sum(windows[-1]) == self.length:
            (_, count), *rest, (last, last_count) = windows
            return [*rest, (last, last_count + count)]
        return windows

    def num_windows_with(self, ranges: Iterable[tuple[int, int]]) -> int:
        """Number of free windows if these (start, count) were busy too. They must be free and disjoint."""
        starts, ends = set(self._starts), {end % self.length for end in self._ends}
        for start, count in ranges:
            starts.add(start)
            ends.add((start + count) % self.length)
        if not starts:
            return 1
        # A busy stretch follows another one directly where a start is also an end. Every other start ends a window.
        return len(starts - ends)

    def _pieces(self, start: int, count: int) -> list[tuple[int, int]]:
        """The range without the seam, as (start, end)."""
        if not (0 <= start < self.length and 0 < count <= self.length):
            raise ValueError(f"a ring of {self.length} slots has no {count} slots from slot {start}")
        end = start + count
        return [(start, end)] if end <= self.length else [(start, self.length), (0, end - self.length)]

    def _is_free(self, start: int, end: int) -> bool:
        index = bisect_left(self._starts, end) - 1
        return index < 0 or self._ends[index] <= start

    def _is_busy(self, start: int, end: int) -> bool:
        index = bisect_right(self._starts, start) - 1
        return index >= 0 and self._ends[index] >= end

    def _add(self, start: int, end: int) -> None:
        index = bisect_left(self._starts, start)
        low = high = index
        if index > 0 and self._ends[index - 1] == start:
            low, start = index - 1, self._starts[index - 1]
        if index < len(self._starts) and self._starts[index] == end:
            high, end = index + 1, self._ends[index]
        self._starts[low:high] = [start]
        self._ends[low:high] = [end]

    def _remove(self, start: int, end: int) -> None:
        index = bisect_right(self._starts, start) - 1
        old_start, old_end = self._starts[index], self._ends[index]
        left = [(old_start, start)] if old_start < start else []
        right = [(end, old_end)] if end < old_end else []
        self._starts[index : index + 1] = [piece[0] for piece in left + right]
        self._ends[index : index + 1] = [piece[1] for piece in left + right]

    def check(self) -> None:
        bounds = [bound for interval in self.intervals for bound in interval]
        assert all(a < b for a, b in pairwise(bounds)), f"not canonical: {self}"
        assert not bounds or (bounds[0] >= 0 and bounds[-1] <= self.length), f"outside the ring: {self}"
