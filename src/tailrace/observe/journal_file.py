"""The journal on disk: ``journal.jsonl``, one entry a line, append-only.

A line is complete when it ends in a newline; a torn last line (the process died while writing) is cut off on
open. Entries are handed to the operating system at once, so the death of the process loses nothing;
``sync`` makes them survive the death of the machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Self

from tailrace.core.journal import Entry, decode, encode


class DamagedJournal(ValueError):
    """An entry that was written whole cannot be read."""


class JournalFile:
    """The one writer of a journal."""

    def __init__(self, path: Path, size: int) -> None:
        self._file = path.open("ab", buffering=0)
        self._file.truncate(size)
        self.size = size
        """Bytes written: the position after the last entry."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open for appending, without a torn last line."""
        path.touch()
        return cls(path, _complete_size(path))

    def append(self, entry: Entry) -> None:
        line = encode(entry).encode() + b"\n"
        write_whole(self._file, line)
        self.size += len(line)

    def truncate(self, size: int) -> None:
        """Forget everything after ``size``."""
        self._file.truncate(size)
        self.size = size

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read(path: Path, start: int = 0) -> Iterator[tuple[int, Entry]]:
    """(position after the entry, entry) for every complete entry from byte ``start`` on."""
    position = start
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                return
            position += len(line)
            try:
                yield position, decode(line.decode())
            except (ValueError, KeyError, TypeError) as error:
                raise DamagedJournal(f"{path}: the entry that ends at byte {position} is damaged: {error}") from error


def write_whole(file: FileIO, data: bytes) -> None:
    """All of it, or an error: a write is short where the disk fills up."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def _complete_size(path: Path) -> int:
    """Size up to and including the last newline; looks at the end of the file only."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        position = end
        while position > 0:
            start = max(0, position - 65536)
            file.seek(start)
            found = file.read(position - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            position = start
    return 0
