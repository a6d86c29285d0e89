"""A cache of recently appended segments. A response is usually scored, trained or continued soon after it is appended.

The oldest segments are removed first. All of them are on disk, so a removed one costs a read.
"""

from __future__ import annotations

from collections import deque

from tailrace.store.segment import Segment

_OBJECTS_BYTES = 1024
"""Memory of a segment besides its data: its arrays and ids as Python objects."""
Where = tuple[int, int]
"""File and offset of a record."""


class RecentSegments:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._num_bytes = max_bytes, 0
        self._segments: dict[Where, Segment] = {}
        self._order: deque[tuple[Where, int]] = deque()

    def add(self, where: Where, segment: Segment, num_bytes: int) -> None:
        """Add a segment. ``num_bytes``: size of its record."""
        self._segments[where] = segment
        self._order.append((where, num_bytes + _OBJECTS_BYTES))
        self._num_bytes += num_bytes + _OBJECTS_BYTES
        while self._num_bytes > self._max_bytes:
            oldest, size = self._order.popleft()
            del self._segments[oldest]
            self._num_bytes -= size

    def get(self, where: Where) -> Segment | None:
        return self._segments.get(where)
