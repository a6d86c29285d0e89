"""Who reads or writes a slot of the channel file right now: any number of readers, or the writer alone.

The locks are the kernel's, one byte of the file each, held by one opening of it: two openings exclude each other, also
inside one process, and a process that dies, however it dies, lets go. Where the kernel has no such locks everything is
granted, and a pull has only its checksums to tell that it was overtaken.
"""

from __future__ import annotations

import errno
import fcntl
import struct
import time

_SET_LOCK: int | None = getattr(fcntl, "F_OFD_SETLK", None)
_FLOCK = struct.Struct("hhqqi4x")  # type, whence, start, length, process (0: the lock belongs to the opening)
_RETRY_S = 0.0005


class SlotLocks:
    def __init__(self, handle: int) -> None:
        """``handle``: an open descriptor of the file; for writing if a slot is ever to be owned."""
        self._handle = handle

    def share(self, slot: int) -> bool:
        """As a reader; refused while the writer has the slot."""
        return self._set(fcntl.F_RDLCK, slot)

    def own(self, slot: int, *, patience_s: float) -> bool:
        """As the writer, as soon as its readers have left; False if one of them is still there after that time."""
        # The kernel waits for ever or not at all.
        deadline = time.monotonic() + patience_s
        while not self._set(fcntl.F_WRLCK, slot):
            if time.monotonic() >= deadline:
                return False
            time.sleep(_RETRY_S)
        return True

    def leave(self, slot: int) -> None:
        self._set(fcntl.F_UNLCK, slot)

    def _set(self, kind: int, slot: int) -> bool:
        if _SET_LOCK is None:
            return True
        try:
            fcntl.fcntl(self._handle, _SET_LOCK, _FLOCK.pack(kind, 0, slot, 1, 0))
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True
