"""The file behind the shared-memory channel: who may read which bytes when.

    prologue   magic, format, lengths              written once, before the file gets its name
    records    two of them, written in turn        generation, version, slot, checksum of the slot's table
    begun      the generation being written        raised before the first byte of a slot changes
    layout     JSON
    slot 0, slot 1                                 a table of one checksum per tensor, then the tensors

Generation g lies in slot g % 2 and is announced by record g % 2. A record counts only if its own checksum is right,
and the record with the highest generation is the newest; so a writer that dies at any moment leaves the generation
before it announced and untouched. The writer of generation g + 2 is the first to overwrite slot g % 2; by then g + 1 is
announced, so nobody begins to read that slot any more, and it waits (``slot_locks``) for those who still do.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import struct
import weakref
import zlib
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tailrace.weights.layout import WeightLayout, align
from tailrace.weights.slot_locks import SlotLocks

MAGIC = b"tailrace"
FORMAT = 1
PROLOGUE = struct.Struct("<8sIIQ")  # magic, format, bytes of layout, number of entries
RECORD = struct.Struct("<QqI")  # generation, version, checksum of the slot's table
RECORD_OFFSETS = (64, 128)
BEGUN_OFFSET = 192
LAYOUT_OFFSET = 256
PAGE = 4096
SUM_COLUMNS = 512


class Record(NamedTuple):
    generation: int
    version: int
    table_checksum: int


class MappedFile:
    """A mapped channel file. Creating one replaces whatever had its name."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        self.path = path
        handle = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        self._close_handle = weakref.finalize(self, os.close, handle)
        self.inode = os.fstat(handle).st_ino
        self._locks = SlotLocks(handle)
        self._map = mmap.mmap(handle, 0, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
        magic, file_format, layout_bytes, _ = PROLOGUE.unpack_from(self._map, 0)
        if magic != MAGIC or file_format != FORMAT:
            raise ValueError(f"{path} is not a weight channel of format {FORMAT}")
        self.layout = WeightLayout.from_json(self._map[LAYOUT_OFFSET : LAYOUT_OFFSET + layout_bytes].decode())
        self._slots_offset = align(LAYOUT_OFFSET + layout_bytes, PAGE)
        self._table_bytes = align(4 * len(self.layout.entries))

    @classmethod
    def create(cls, path: Path, layout: WeightLayout) -> Self:
        """A reader never sees the file half made: it gets its name last."""
        text = layout.to_json().encode()
        num_bytes = file_bytes(layout)
        unnamed = path.with_name(path.name + ".new")
        unnamed.unlink(missing_ok=True)
        handle = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            _allocate(handle, num_bytes, path.parent)
            os.pwrite(handle, PROLOGUE.pack(MAGIC, FORMAT, len(text), len(layout.entries)), 0)
            os.pwrite(handle, text, LAYOUT_OFFSET)
            unnamed.rename(path)
        except OSError:
            unnamed.unlink(missing_ok=True)
            raise
        finally:
            os.close(handle)
        return cls(path, writable=True)

    def latest(self) -> Record | None:
        """The newest generation that was announced, if any."""
        records = [record for record in map(self._record, RECORD_OFFSETS) if record is not None]
        return max(records, default=None)

    def announce(self, record: Record) -> None:
        body = RECORD.pack(*record)
        offset = RECORD_OFFSETS[record.generation % 2]
        self._map[offset : offset + RECORD.size + 4] = body + zlib.crc32(body).to_bytes(4, "little")

    @property
    def begun(self) -> int:
        """The highest generation of which bytes may have been written."""
        return int.from_bytes(self._map[BEGUN_OFFSET : BEGUN_OFFSET + 8], "little")

    @begun.setter
    def begun(self, generation: int) -> None:
        self._map[BEGUN_OFFSET : BEGUN_OFFSET + 8] = generation.to_bytes(8, "little")

    def share(self, generation: int) -> bool:
        """Whether its slot may be read now; until ``leave`` its writer waits, if not for ever."""
        return self._locks.share(generation % 2)

    def own(self, generation: int, *, patience_s: float) -> bool:
        """Whether nobody reads its slot, after waiting for those who do."""
        return self._locks.own(generation % 2, patience_s=patience_s)

    def leave(self, generation: int) -> None:
        self._locks.leave(generation % 2)

    def table(self, generation: int) -> NDArray[np.uint32]:
        """Checksums of a generation's tensors, in layout order; a view."""
        offset = self._slot_offset(generation)
        return np.frombuffer(self._map, np.uint32, len(self.layout.entries), offset)

    def tensor_bytes(self, generation: int, index: int) -> NDArray[np.uint8]:
        """A tensor's bytes and the padding behind them; a view."""
        entry = self.layout.entries[index]
        offset = self._slot_offset(generation) + self._table_bytes + entry.offset
        return np.frombuffer(self._map, np.uint8, entry.padded_bytes, offset)

    def close(self) -> None:
        self._close_handle()
        # Where somebody (a traceback, for one) still holds a view, the mapping goes with the last of them.
        with contextlib.suppress(BufferError):
            self._map.close()

    def _record(self, offset: int) -> Record | None:
        stored = self._map[offset : offset + RECORD.size + 4]
        body, checksum = stored[: RECORD.size], int.from_bytes(stored[RECORD.size :], "little")
        record = Record(*RECORD.unpack(body))
        return record if record.generation and zlib.crc32(body) == checksum else None

    def _slot_offset(self, generation: int) -> int:
        return self._slots_offset + (generation % 2) * _slot_bytes(self.layout)


def checksum(data: NDArray[np.uint8]) -> int:
    """At memory speed: column sums of the 64-bit words, then a CRC of those. Any changed bit changes it."""
    words = data.view(np.uint64)
    num_whole = len(words) // SUM_COLUMNS * SUM_COLUMNS
    sums = words[:num_whole].reshape(-1, SUM_COLUMNS).sum(axis=0, dtype=np.uint64)
    rest = words[num_whole:]
    sums[: len(rest)] += rest
    return zlib.crc32(sums)


def file_bytes(layout: WeightLayout) -> int:
    """Size of the channel file of a layout."""
    return align(LAYOUT_OFFSET + len(layout.to_json().encode()), PAGE) + 2 * _slot_bytes(layout)


def _slot_bytes(layout: WeightLayout) -> int:
    return align(align(4 * len(layout.entries)) + layout.num_bytes, PAGE)


def _allocate(handle: int, num_bytes: int, directory: Path) -> None:
    """Reserve every byte now: without it, a full memory file system kills the process at some later write."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, 0, num_bytes)
        else:
            os.truncate(handle, num_bytes)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise OSError(errno.ENOSPC, f"two versions of the weights need {num_bytes} bytes in {directory}") from error
        raise
