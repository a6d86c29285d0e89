"""``checksums.json``: the crc32 of every file of a checkpoint, so that a changed byte is found."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

CHECKSUMS_NAME = "checksums.json"
_CHUNK_BYTES = 1 << 20


def write_checksums(directory: Path) -> None:
    """Write the checksums of all files that are in the directory now."""
    files = sorted(path for path in directory.iterdir() if path.is_file() and path.name != CHECKSUMS_NAME)
    _write(directory, {path.name: _crc32(path) for path in files})


def add_checksum(directory: Path, name: str) -> None:
    """Add the checksum of one more file."""
    _write(directory, read_checksums(directory) | {name: _crc32(directory / name)})


def read_checksums(directory: Path) -> dict[str, str]:
    path = directory / CHECKSUMS_NAME
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def changed_files(directory: Path) -> Iterator[str]:
    """Return the names of files that changed or are missing."""
    for name, checksum in read_checksums(directory).items():
        path = directory / name
        if not path.exists() or _crc32(path) != checksum:
            yield name


def _write(directory: Path, checksums: dict[str, str]) -> None:
    with (directory / CHECKSUMS_NAME).open("w", encoding="utf-8") as file:
        file.write(json.dumps(checksums, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _crc32(path: Path) -> str:
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            value = zlib.crc32(chunk, value)
    return f"{value:08x}"
