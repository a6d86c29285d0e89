"""The file of the shared-memory channel.

    prologue        magic, format, lengths; written once, before the file gets its name
    two records     generation, version and checksum of a slot's table, then a checksum of the record itself
    begun           the generation that is being written; raised before the first byte of its slot changes
    layout          JSON
    two slots       a table with one checksum per tensor, then the tensors

Every published version gets the next *generation* number. Generation g lies in slot g % 2 and is announced by record
g % 2. A record is valid if its own checksum is right. The valid record with the highest generation is the newest. So if
a writer dies at any moment, the previous generation is still announced and unchanged.

Slot g % 2 is overwritten by generation g + 2. Before that, generation g + 1 has been announced, so no new read of the
slot begins, and the writer waits for reads that are still going on (``slot_locks.py``).
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

from tailrace.weights.channel_files import unfinished
from tailrace.weights.layout import WeightLayout, align
from tailrace.weights.slot_locks import SlotLocks

MAGIC = b"tailrace"
FORMAT = 1
PROLOGUE = struct.Struct("<8sIIQ")  # magic, format, bytes of layout, number of entries
RECORD = struct.Struct("<QqI")  # generation, version, checksum of the slot's table
RECORD_OFFSETS = (64, 128)
BEGUN_OFFSET = 192
LAYOUT_OFFSET = 256
NUM_SLOTS = 2
PAGE = 4096
SUM_COLUMNS = 512


class Record(NamedTuple):
    generation: int
    version: int
    table_checksum: int


class MappedFile:
    """A channel file, mapped into memory."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        self.path = path
        handle = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        self._close_handle = weakref.finalize(self, os.close, handle)
        self.inode = os.fstat(handle).st_ino
        self.locks = SlotLocks(handle)
        self._map = mmap.mmap(handle, 0, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
        magic, file_format, layout_bytes, _ = PROLOGUE.unpack_from(self._map, 0)
        if magic != MAGIC or file_format != FORMAT:
            raise ValueError(f"{path} is not a weight channel of format {FORMAT}")
        self.layout = WeightLayout.from_json(self._map[LAYOUT_OFFSET : LAYOUT_OFFSET + layout_bytes].decode())
        self._slots_offset = align(LAYOUT_OFFSET + layout_bytes, PAGE)
        self._table_bytes = align(4 * len(self.layout.entries))

    @classmethod
    def create(cls, path: Path, layout: WeightLayout) -> Self:
        """Make an empty channel file. It gets its name when it is complete, and replaces a file of the same name."""
        text = layout.to_json().encode()
        num_bytes = file_bytes(layout)
        unnamed = unfinished(path)
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
        """Return the record of the newest generation, or None if nothing has been published."""
        records = [record for record in map(self._record, RECORD_OFFSETS) if record is not None]
        return max(records, default=None)

    def announce(self, record: Record) -> None:
        body = RECORD.pack(*record)
        offset = RECORD_OFFSETS[record.generation % NUM_SLOTS]
        self._map[offset : offset + RECORD.size + 4] = body + zlib.crc32(body).to_bytes(4, "little")

    @property
    def begun(self) -> int:
        """The highest generation that the writer has begun to write."""
        return int.from_bytes(self._map[BEGUN_OFFSET : BEGUN_OFFSET + 8], "little")

    @begun.setter
    def begun(self, generation: int) -> None:
        self._map[BEGUN_OFFSET : BEGUN_OFFSET + 8] = generation.to_bytes(8, "little")

    def begin_read(self, generation: int) -> None:
        """From now until ``end_read``, the writer waits before it overwrites this generation, up to its limit."""
        self.locks.begin_read(generation % NUM_SLOTS)

    def end_read(self, generation: int) -> None:
        self.locks.end_read(generation % NUM_SLOTS)

    def table(self, generation: int) -> NDArray[np.uint32]:
        """Return a view of the checksums of a generation's tensors, in layout order."""
        offset = self._slot_offset(generation)
        return np.frombuffer(self._map, np.uint32, len(self.layout.entries), offset)

    def tensor_bytes(self, generation: int, index: int) -> NDArray[np.uint8]:
        """Return a view of a tensor's bytes, with the padding after them."""
        entry = self.layout.entries[index]
        offset = self._slot_offset(generation) + self._table_bytes + entry.offset
        return np.frombuffer(self._map, np.uint8, entry.padded_bytes, offset)

    def close(self) -> None:
        self._close_handle()
        # If a view still exists (in a traceback, for instance), the mapping is removed together with the last view.
        with contextlib.suppress(BufferError):
            self._map.close()

    def _record(self, offset: int) -> Record | None:
        stored = self._map[offset : offset + RECORD.size + 4]
        body, checksum = stored[: RECORD.size], int.from_bytes(stored[RECORD.size :], "little")
        record = Record(*RECORD.unpack(body))
        return record if record.generation and zlib.crc32(body) == checksum else None

    def _slot_offset(self, generation: int) -> int:
        return self._slots_offset + (generation % NUM_SLOTS) * _slot_bytes(self.layout)


def checksum(data: NDArray[np.uint8]) -> int:
    """Return a checksum that any single changed bit changes: a CRC of column sums of the 64-bit words.

    Adding up columns runs at the speed of memory, which a CRC of all bytes does not.
    """
    words = data.view(np.uint64)
    num_whole = len(words) // SUM_COLUMNS * SUM_COLUMNS
    sums = words[:num_whole].reshape(-1, SUM_COLUMNS).sum(axis=0, dtype=np.uint64)
    rest = words[num_whole:]
    sums[: len(rest)] += rest
    return zlib.crc32(sums)


def file_bytes(layout: WeightLayout) -> int:
    """Return the size of a channel file with this layout."""
    return align(LAYOUT_OFFSET + len(layout.to_json().encode()), PAGE) + NUM_SLOTS * _slot_bytes(layout)


def _slot_bytes(layout: WeightLayout) -> int:
    return align(align(4 * len(layout.entries)) + layout.num_bytes, PAGE)


def _allocate(handle: int, num_bytes: int, directory: Path) -> None:
    """Reserve all bytes now. Otherwise a later write kills the process if the memory file system is full by then."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, 0, num_bytes)
        else:
            os.truncate(handle, num_bytes)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise OSError(
                errno.ENOSPC, f"no room for two versions of the weights, {num_bytes} bytes, in {directory}"
            ) from error
        raise
