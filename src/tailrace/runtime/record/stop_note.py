"""``stopped.json``: why a run ended early, kept where a full disk can still take it.

The space for the reason is allocated when the run begins and overwritten in place, so no new block is needed (except on
file systems that never overwrite, such as btrfs and zfs). The file is blank while the run continues, and is removed
when the run is complete.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from tailrace.observe.journal.journal_file import write_whole

_ROOM_BYTES = 4096


class StopNote:
    def __init__(self, path: Path) -> None:
        self._path = path

    def reserve(self) -> None:
        """Write a blank file: the reason of an earlier stop no longer applies."""
        self._overwrite(b"", os.O_CREAT)

    def write(self, reason: str) -> None:
        """Write the reason. Errors are ignored: a run that ends must not fail because of this file."""
        note = json.dumps({"reason": reason}).encode()
        if len(note) > _ROOM_BYTES:
            note = json.dumps({"reason": reason[: _ROOM_BYTES // 16]}).encode()
        try:
            self._overwrite(note)
        except OSError:
            return

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)

    def _overwrite(self, content: bytes, flags: int = 0) -> None:
        with open(os.open(self._path, os.O_WRONLY | flags, 0o644), "wb", buffering=0) as file:
            write_whole(file, content.ljust(_ROOM_BYTES))
            os.fsync(file.fileno())  # a file system may choose its blocks only now
