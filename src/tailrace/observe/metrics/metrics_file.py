"""``metrics.jsonl``: one JSON object per row. Rows are appended; a resumed run first cuts off those it writes again."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tailrace.observe.journal.journal_file import write_whole
from tailrace.observe.metrics.rows import Row


class MetricsFile:
    def __init__(self, path: Path, *, size: int = 0) -> None:
        """Keep the first ``size`` bytes."""
        self._path, self._file = path, path.open("ab", buffering=0)
        self._file.truncate(size)
        self.size = size

    def append(self, row: Row) -> None:
        line = json.dumps(row).encode() + b"\n"
        write_whole(self._file, line)
        self.size += len(line)

    def replace(self, path: Path) -> None:
        """Take the place of another file. Rows are appended there from now on."""
        self._path = self._path.replace(path)

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def has_bytes(path: Path, count: int) -> bool:
    """Whether the file has at least this many bytes."""
    return (path.stat().st_size if path.exists() else 0) >= count


def read_rows(path: Path) -> list[Row]:
    """All rows of the file."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]
