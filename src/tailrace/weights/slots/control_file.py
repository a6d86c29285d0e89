"""The control part of a channel file: what is published, and who reads it. The weights lie elsewhere (``SlotFile``).

    prologue        magic, format, lengths; written once, before the file gets its name
    two records     generation, version and checksum of a slot's table, then a checksum of the record itself
    begun           the generation that is being written; raised before the first byte of its slot changes
    layout          JSON
    note            text of the kind of channel; empty if the weights lie in this file
    two tables      one checksum per tensor

Every published version gets the next *generation* number. Generation g lies in slot g % 2 and is announced by record
g % 2. A record is valid if its own checksum is right. The valid record with the highest generation is the newest. So if
a writer dies at any moment, the previous generation is still announced and unchanged.

Writer and readers hold a lock on the file as long as they have it open (``leftovers.py``).

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
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.weights.sharding.layout import WeightLayout, align
from tailrace.weights.slots.channel_files import unfinished
from tailrace.weights.slots.leftovers import MAGIC, hold
from tailrace.weights.slots.slot_locks import SlotLocks

FORMAT = 3
PROLOGUE = struct.Struct("<8sIII")  # magic, format, bytes of layout, bytes of note
RECORD = struct.Struct("<QqI")  # generation, version, checksum of the slot's table
RECORD_OFFSETS = (64, 128)
BEGUN_OFFSET = 192
LAYOUT_OFFSET = 256
NUM_SLOTS = 2
PAGE = 4096


class SlotRecord(NamedTuple):
    generation: int
    version: int
    table_checksum: int


class ControlFile:
    """The control part of a channel file, mapped into memory."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        self.path = path
        handle = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        self._close_handle = weakref.finalize(self, os.close, handle)
        if not hold(handle):
            self._close_handle()
            raise FileNotFoundError(errno.ENOENT, "the weight channel has been removed", str(path))
        self.inode = os.fstat(handle).st_ino
        self.locks = SlotLocks(handle)
        self._map = mmap.mmap(handle, 0, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
        magic, file_format, layout_bytes, note_bytes = PROLOGUE.unpack_from(self._map, 0)
        if magic != MAGIC or file_format != FORMAT:
            raise ValueError(f"{path} is not a weight channel of format {FORMAT}")
        note_offset = LAYOUT_OFFSET + layout_bytes
        self.layout = WeightLayout.from_json(self._map[LAYOUT_OFFSET:note_offset].decode())
        self.note = self._map[note_offset : note_offset + note_bytes].decode()
        self._tables_offset = align(note_offset + note_bytes)

    def latest(self) -> SlotRecord | None:
        """Return the record of the newest generation, or None if nothing has been published."""
        records = [record for record in map(self._record, RECORD_OFFSETS) if record is not None]
        return max(records, default=None)

    def announce(self, generation: int, version: int) -> None:
        body = RECORD.pack(generation, version, table_checksum(self.table(generation)))
        offset = RECORD_OFFSETS[generation % NUM_SLOTS]
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

    def table(self, generation: int) -> NDArray[np.uint64]:
        """Return a view of the checksums of a generation's tensors, in layout order."""
        num_entries = len(self.layout.entries)
        offset = self._tables_offset + generation % NUM_SLOTS * _table_bytes(self.layout)
        return np.frombuffer(self._map, np.uint64, num_entries, offset)

    def close(self) -> None:
        self._close_handle()
        # If a view still exists (in a traceback, for instance), the mapping is removed together with the last view.
        with contextlib.suppress(BufferError):
            self._map.close()

    def _record(self, offset: int) -> SlotRecord | None:
        stored = self._map[offset : offset + RECORD.size + 4]
        body, checksum = stored[: RECORD.size], int.from_bytes(stored[RECORD.size :], "little")
        record = SlotRecord(*RECORD.unpack(body))
        return record if record.generation and zlib.crc32(body) == checksum else None


@contextlib.contextmanager
def new_file(path: Path, layout: WeightLayout, *, note: str = "", slot_bytes: int = 0) -> Iterator[None]:
    """Make an empty channel file, with room for two slots after the control part. It is locked in this context, so that
    the writer has time to open it.

    It gets its name when it is complete, and replaces a file of the same name.
    """
    handle = _create(unfinished(path))
    try:
        _fill(handle, path, layout, note, slot_bytes)
        unfinished(path).rename(path)
        yield
    except OSError:
        unfinished(path).unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)


def _create(path: Path) -> int:
    """An open, locked, empty file."""
    while True:
        path.unlink(missing_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        if hold(handle):
            return handle
        os.close(handle)


def _fill(handle: int, path: Path, layout: WeightLayout, note: str, slot_bytes: int) -> None:
    text, remark = layout.to_json().encode(), note.encode()
    # First of all what the file is: if this process is killed, whoever finds it knows that it is ours.
    os.pwrite(handle, PROLOGUE.pack(MAGIC, FORMAT, len(text), len(remark)), 0)
    _allocate(handle, control_bytes(layout, note) + NUM_SLOTS * slot_bytes, path.parent)
    os.pwrite(handle, text + remark, LAYOUT_OFFSET)


def control_bytes(layout: WeightLayout, note: str = "") -> int:
    """Return the size of the control part."""
    texts = len(layout.to_json().encode()) + len(note.encode())
    return align(align(LAYOUT_OFFSET + texts) + NUM_SLOTS * _table_bytes(layout), PAGE)


def table_checksum(table: NDArray[np.uint64]) -> int:
    return zlib.crc32(table.tobytes())


def _table_bytes(layout: WeightLayout) -> int:
    return align(8 * len(layout.entries))


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
