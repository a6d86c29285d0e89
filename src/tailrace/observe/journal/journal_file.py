"""The journal on disk: ``journal.jsonl`` and its closed segments, one entry a line, append-only.

A line is complete when it ends in a newline; a torn last line (the process died while writing) is cut off on
open. Entries are handed to the operating system at once, so the death of the process loses nothing;
``sync`` makes them survive the death of the machine. Positions are bytes from the start of the first segment
(``journal_segments.py``).
"""

from __future__ import annotations

import contextlib
import gzip
import os
import zlib
from collections.abc import Generator, Iterator
from io import FileIO
from pathlib import Path
from typing import BinaryIO, Self

from tailrace.core import journal
from tailrace.core.journal import Entry, OtherFormat, decode, encode
from tailrace.observe.journal import journal_segments as segments


class DamagedJournal(ValueError):
    """An entry that was written whole cannot be read."""


class JournalFile:
    """The one writer of a journal."""

    def __init__(self, path: Path, start: int, size: int) -> None:
        """``start``: position at which the file begins; ``size``: the bytes of it that count."""
        self._path, self._start = path, start
        self._file = path.open("ab", buffering=0)
        self._file.truncate(size)
        self.size = start + size
        """Bytes written: the position after the last entry."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open for appending; an incomplete last line is cut off first."""
        path.touch()
        return cls(path, segments.start_of(path), _complete_size(path))

    def append(self, *entries: Entry) -> None:
        """Write entries with one call of the operating system."""
        lines = b"".join([encode(entry).encode() + b"\n" for entry in entries])
        write_whole(self._file, lines)
        self.size += len(lines)

    def truncate(self, size: int) -> None:
        """Drop everything after ``size``."""
        while size < self._start:
            self._reopen(segments.reopen_last(self._path))
        self._file.truncate(size - self._start)
        self.size = size

    def close_segment(self) -> None:
        """Make a segment of what is written so far, and go on in a new file."""
        self.sync()
        segments.close_segment(self._path, self._start)
        self._reopen(self.size)

    @property
    def open_bytes(self) -> int:
        """Written since the last segment was closed."""
        return self.size - self._start

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def _reopen(self, start: int) -> None:
        self._file.close()
        self._file, self._start = self._path.open("ab", buffering=0), start


def read(path: Path, start: int = 0, *, until: int | None = None) -> Generator[tuple[int, Entry], None, None]:
    """(position after the entry, entry) for every complete entry from ``start`` on, to the end or to ``until``."""
    with contextlib.closing(_read_all(path, start)) as entries:
        for position, entry in entries:
            if until is not None and position > until:
                return
            yield position, entry


def _read_all(path: Path, start: int) -> Generator[tuple[int, Entry], None, None]:
    check_format(path)
    with contextlib.ExitStack() as stack:
        files = [(segment, stack.enter_context(file)) for segment, file in segments.all_segments(path)]
        for segment, file in files:
            if segment.end > start or segment.path == path:
                yield from _read_file(path, segment, file, max(start, segment.start))


def _read_file(path: Path, segment: segments.JournalSegment, file: BinaryIO, start: int) -> Iterator[tuple[int, Entry]]:
    position = start
    file.seek(start - segment.start)
    while (line := _next_line(path, file)).endswith(b"\n"):
        position += len(line)
        try:
            entry = decode(line.decode())
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedJournal(f"{path}: the entry that ends at byte {position} is damaged: {error}") from error
        yield position, entry


def _next_line(path: Path, file: BinaryIO) -> bytes:
    """The next line, without its end if it was cut off; empty at the end."""
    try:
        return file.readline()
    except (zlib.error, gzip.BadGzipFile, EOFError) as error:
        raise DamagedJournal(f"{path}: a compressed part of it is damaged: {error}") from error


def check_format(path: Path) -> None:
    """``OtherFormat`` if the journal is not of the format that is read here. One without a complete line is of any."""
    first = next(iter(segments.closed_segments(path)), None)
    with path.open("rb") if first is None else first.open() as file:
        line = _next_line(path, file)
    if not line.endswith(b"\n"):
        return
    try:
        journal.check_format(line.decode())
    except OtherFormat as error:
        raise OtherFormat(f"{path}: {error}") from None
    except ValueError as error:
        raise DamagedJournal(f"{path}: its first line is damaged: {error}") from error


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
