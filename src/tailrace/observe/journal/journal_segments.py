"""The files of a journal: `journal.jsonl`, which grows, and before it the segments that were closed.

    journal-000000000000000.jsonl.gz    bytes 0 to 16,777,302 of the journal, compressed
    journal-000000016777302.jsonl       the next ones
    journal.jsonl                       the rest; the only file that changes

A name tells where in the journal a segment begins, in bytes before compression: positions in a journal mean the same
whether it was cut into segments or not. A segment ends with a whole line. Small journals have no segments.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import shutil
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

SUMMARY_NAME = "summary.bin"
"""What compressed segments say (``summaries.py``)."""
_SIZE_BYTES = 4
"""At the end of a gzip file: its size before compression."""


class JournalSegment(NamedTuple):
    start: int
    size: int
    """In bytes before compression."""
    path: Path

    @property
    def end(self) -> int:
        return self.start + self.size

    @property
    def is_packed(self) -> bool:
        return self.path.suffix == ".gz"

    def open(self) -> BinaryIO:
        if self.is_packed:
            return cast(BinaryIO, gzip.open(self.path, "rb"))
        return self.path.open("rb")


def closed_segments(journal: Path) -> list[JournalSegment]:
    """In order. Where one is there twice, because a process died while it compressed it, the compressed one counts."""
    while True:
        with contextlib.suppress(FileNotFoundError):  # it was compressed a moment ago: look again
            return _closed_segments(journal)


def _closed_segments(journal: Path) -> list[JournalSegment]:
    name = re.compile(re.escape(journal.stem) + r"-(\d{15})\.jsonl(\.gz)?")
    found: dict[int, JournalSegment] = {}
    for path in sorted(journal.parent.glob(f"{journal.stem}-*.jsonl*")):
        if match := name.fullmatch(path.name):
            start = int(match[1])
            found[start] = JournalSegment(start, _packed_size(path) if match[2] else path.stat().st_size, path)
    return [found[start] for start in sorted(found)]


def start_of(journal: Path) -> int:
    """Position at which `journal.jsonl` itself begins."""
    return max((segment.end for segment in closed_segments(journal)), default=0)


def end_of(journal: Path) -> int:
    """Position after the last byte; 0 if there is no journal."""
    return start_of(journal) + (journal.stat().st_size if journal.exists() else 0)


def all_segments(journal: Path) -> list[tuple[JournalSegment, BinaryIO]]:
    """All files of a journal in order, open for reading, also while its writer closes or compresses one of them."""
    while True:
        before = closed_segments(journal)
        try:
            found = _open_all(journal, before)
        except FileNotFoundError:
            if not before:
                raise
            continue  # one of them was compressed a moment ago
        if closed_segments(journal) == before:
            return found
        for _, file in found:
            file.close()


def _open_all(journal: Path, closed: list[JournalSegment]) -> list[tuple[JournalSegment, BinaryIO]]:
    start = max((segment.end for segment in closed), default=0)
    with contextlib.ExitStack() as stack:
        found = [(segment, stack.enter_context(segment.open())) for segment in closed]
        if journal.exists() or not closed:  # a process that died as it closed a segment has not begun the next file
            last = stack.enter_context(journal.open("rb"))
            found.append((JournalSegment(start, os.fstat(last.fileno()).st_size, journal), last))
        stack.pop_all()
    return found


def close_segment(journal: Path, start: int) -> None:
    """Make a segment of `journal.jsonl`, which begins at ``start``."""
    journal.rename(_path(journal, start))
    descriptor = os.open(journal.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reopen_last(journal: Path) -> int:
    """Make the last closed segment `journal.jsonl` again, in place of what came after it, and return its start."""
    last = closed_segments(journal)[-1]
    if last.is_packed:
        journal.with_name(SUMMARY_NAME).unlink(missing_ok=True)  # it may know of entries that will not be there
        _unpack(last.path, journal)
    else:
        last.path.replace(journal)
    return last.start


def pack(journal: Path, *, until: int) -> int:
    """Compress closed segments that end at ``until`` or before: a checkpoint covers them, so no run needs them again.

    Returned is how many were compressed.
    """
    count = 0
    for segment in closed_segments(journal):
        if segment.end <= until and not segment.is_packed:
            count += _pack(segment.path)
        if segment.is_packed:
            segment.path.with_suffix("").unlink(missing_ok=True)  # left by a death between two steps of _pack
    return count


def _pack(path: Path) -> bool:
    draft = path.with_name(path.name + ".draft")
    try:
        with path.open("rb") as source, draft.open("wb") as target:
            with gzip.GzipFile(filename="", fileobj=target, mode="wb", compresslevel=6, mtime=0) as packed:
                shutil.copyfileobj(source, packed, 1 << 20)
            target.flush()
            os.fsync(target.fileno())
    except OSError:  # the disk is full: the segment stays as it is, and is tried again with the next checkpoint
        draft.unlink(missing_ok=True)
        return False
    draft.replace(path.with_name(path.name + ".gz"))
    path.unlink()
    return True


def _unpack(path: Path, journal: Path) -> None:
    draft = journal.with_name(journal.name + ".draft")
    with gzip.open(path, "rb") as packed, draft.open("wb") as target:
        shutil.copyfileobj(packed, target, 1 << 20)
    draft.replace(journal)
    path.unlink()


def _packed_size(path: Path) -> int:
    with path.open("rb") as file:
        file.seek(-_SIZE_BYTES, os.SEEK_END)
        return int.from_bytes(file.read(_SIZE_BYTES), "little")


def _path(journal: Path, start: int) -> Path:
    return journal.with_name(f"{journal.stem}-{start:015d}.jsonl")
