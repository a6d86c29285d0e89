"""What was appended a short while ago, in memory: a response is scored, trained or continued soon after it was told of.

Least recently appended goes first. It holds copies of what is on disk already: dropping any of it costs a read.
"""

from __future__ import annotations

from collections import deque

from tailrace.store.segment import Segment

_OBJECTS_BYTES = 1024
"""Of a segment beside its data: the arrays and ids that it is made of."""
Where = tuple[int, int]
"""File and offset of a record."""


class RecentSegments:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._num_bytes = max_bytes, 0
        self._segments: dict[Where, Segment] = {}
        self._order: deque[tuple[Where, int]] = deque()

    def add(self, where: Where, segment: Segment, num_bytes: int) -> None:
        """``num_bytes``: those of its record."""
        self._segments[where] = segment
        self._order.append((where, num_bytes + _OBJECTS_BYTES))
        self._num_bytes += num_bytes + _OBJECTS_BYTES
        while self._num_bytes > self._max_bytes:
            oldest, size = self._order.popleft()
            del self._segments[oldest]
            self._num_bytes -= size

    def get(self, where: Where) -> Segment | None:
        return self._segments.get(where)
