"""Who reads a slot of the channel file right now, and the writer's wait for them.

Each read holds a lock of its own on one byte, whose position is drawn at random from the slot's range of positions
(positions need not exist in the file). The position names the read: the writer can tell a read that it has waited for
already from one that began later. Locks are the kernel's and belong to one opening of the file, so they also work
between two openings in one process, and the kernel removes them when a process dies in any way.

Where the kernel has no such locks, a slot seems to have no readers. A pull then notices only by the generation number
and the checksums that the writer has overwritten what it read.
"""

from __future__ import annotations

import fcntl
import secrets
import struct
import time
from collections.abc import Callable, Iterable, Iterator

_SET_LOCK: int | None = getattr(fcntl, "F_OFD_SETLK", None)
_GET_LOCK: int | None = getattr(fcntl, "F_OFD_GETLK", None)
_FLOCK = struct.Struct("hhqqi4x")  # type, whence, start, length, process (0: the lock belongs to the opening)
_POSITIONS = 1 << 60
"""Positions for the locks of one slot."""
_WRITER = 2 * _POSITIONS
"""Position of the lock of a writer that tells its readers that it lives."""
READER_LIMIT_S = 30.0
"""Longest time that the writer waits for a read of the slot it is about to overwrite."""
RETRY_S = 0.0005
"""Pause before the writer looks again whether a slot is still read."""


class SlotLocks:
    def __init__(self, handle: int) -> None:
        """``handle``: an open descriptor of the channel file."""
        self._handle = handle

    def begin_read(self, slot: int) -> None:
        self._set(fcntl.F_RDLCK, slot * _POSITIONS + secrets.randbelow(_POSITIONS), 1)

    def end_read(self, slot: int) -> None:
        self._set(fcntl.F_UNLCK, slot * _POSITIONS, _POSITIONS)

    def hold_as_writer(self) -> None:
        """Tell readers that the writer lives, until ``end_as_writer`` or until this process ends in any way."""
        self._set(fcntl.F_WRLCK, _WRITER, 1)

    def end_as_writer(self) -> None:
        self._set(fcntl.F_UNLCK, _WRITER, 1)

    def has_writer(self) -> bool:
        """Whether a writer in another opening of the file lives. Where the kernel has no such locks: always."""
        return _GET_LOCK is None or self._first_lock(_WRITER, _WRITER + 1) is not None

    def find_read(self, slot: int, *, ignoring: Iterable[int] = ()) -> int | None:
        """Return the position of one read of the slot that is not ignored, or None if there is none.

        Reads of this opening are not seen.
        """
        for start, stop in _gaps(slot * _POSITIONS, (slot + 1) * _POSITIONS, ignoring):
            if (found := self._first_lock(start, stop)) is not None:
                return found
        return None

    def is_going_on(self, read: int) -> bool:
        """Whether the read at this position has not ended."""
        return self._first_lock(read, read + 1) is not None

    def _set(self, kind: int, start: int, length: int) -> None:
        if _SET_LOCK is not None:
            fcntl.fcntl(self._handle, _SET_LOCK, _FLOCK.pack(kind, 0, start, length, 0))

    def _first_lock(self, start: int, stop: int) -> int | None:
        if _GET_LOCK is None or start == stop:
            return None
        answer = fcntl.fcntl(self._handle, _GET_LOCK, _FLOCK.pack(fcntl.F_WRLCK, 0, start, stop - start, 0))
        kind, _, found, _, _ = _FLOCK.unpack(answer)
        return None if kind == fcntl.F_UNLCK else int(found)


class ReaderWait:
    """The writer's wait for reads of the slot that it is about to overwrite.

    A read that lasts longer than ``limit_s`` (its process is stopped, for instance) is remembered, and no later wait
    counts it. The next read of the same reader is waited for again.
    """

    def __init__(
        self,
        locks: SlotLocks,
        *,
        limit_s: float,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._locks, self._limit_s, self._now, self._sleep = locks, limit_s, now, sleep
        self._overdue: list[int] = []
        """Positions of reads that lasted longer than the limit and still go on."""

    def wait(self, slot: int) -> None:
        """Return when nobody reads the slot but overdue reads, at the latest after the limit."""
        self._overdue = [read for read in self._overdue if self._locks.is_going_on(read)]
        # The kernel can wait without end or not at all, so a limit means to look again and again.
        deadline = self._now() + self._limit_s
        while (read := self._locks.find_read(slot, ignoring=self._overdue)) is not None:
            if self._now() >= deadline:
                self._overdue.append(read)
            else:
                self._sleep(RETRY_S)


def _gaps(start: int, stop: int, positions: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The range from ``start`` up to ``stop`` without these positions, as ranges."""
    for position in sorted(position for position in positions if start <= position < stop):
        yield start, position
        start = position + 1
    yield start, stop
