"""``stopped.json``: why a run ended early, kept where a full disk can still take it.

Room for the reason is set aside when the run begins and is overwritten in place, so no new block is needed (but where
the file system never overwrites, as btrfs and zfs do not). Blank while the run goes on; gone when it is complete.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from tailrace.observe.journal_file import write_whole

_ROOM_BYTES = 4096


class StopNote:
    def __init__(self, path: Path) -> None:
        self._path = path

    def set_aside(self) -> None:
        """Blank: whatever stopped the run before does no longer hold."""
        self._overwrite(b"", os.O_CREAT)

    def write(self, reason: str) -> None:
        """Does what it can: a run that ends must not fail over its own last words."""
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
