"""The weight channel of one machine: a file in memory with two slots, one writer, any number of readers.

``publish`` writes the older slot and then announces it. ``fetch`` copies from the slot that was announced last.

* The writer has priority. A read always goes to the version announced last, never to the slot that is written next. So
  a publish waits only for reads that began before the last announcement.
* The lock of a reader that dies is removed by the kernel. If a read takes longer than ``READER_LIMIT_S`` (its process
  is stopped, for instance), the writer overwrites the slot, and does not wait for that read again.
* A read returns its copy only if the writer had not begun to overwrite it and every tensor matches its checksum;
  otherwise it reads again. So a reader that was overtaken never returns a mixture of two versions.

``mapped_file.py`` describes the bytes of the file.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailrace.core.ids import Version
from tailrace.weights import channel_files
from tailrace.weights.address import ChannelAddress
from tailrace.weights.channel import CorruptWeights, Fetched, VersionNotPublished
from tailrace.weights.layout import ITEM_BYTES, Entry, WeightLayout
from tailrace.weights.mapped_file import NUM_SLOTS, MappedFile, Record, checksum, file_bytes
from tailrace.weights.sharding import Box, Holding, Parameter, whole
from tailrace.weights.slot_locks import ReaderWait
from tailrace.weights.transfer_plan import Slice, Transfer

READER_LIMIT_S = 30.0
"""Longest time that the writer waits for a read of the slot it is about to overwrite."""
MAX_READS = 100
"""Number of reads that may be overtaken by the writer, or differ from their checksums, before a fetch fails."""
SENDER = "parameter server"
"""Name of the only sender of this channel. It holds the whole model."""


def layout_of(weights: Iterable[tuple[str, Tensor]]) -> WeightLayout:
    return WeightLayout.build((name, tuple(tensor.shape), _dtype_name(tensor.dtype)) for name, tensor in weights)


class WeightWriter:
    """The writer of a channel. There must be only one."""

    def __init__(self, file: MappedFile, readers: ReaderWait | None = None) -> None:
        self._file = file
        self._readers = ReaderWait(file.locks, limit_s=READER_LIMIT_S) if readers is None else readers

    @classmethod
    def create(cls, path: Path, layout: WeightLayout) -> Self:
        """Make a new, empty channel. A channel that has this path is replaced."""
        return cls(MappedFile.create(path, layout))

    @classmethod
    def create_for(cls, name: str, layout: WeightLayout) -> Self:
        """Make a new, empty channel for the run with this name: in memory if it fits there, else on disk."""
        return cls.create(channel_files.prepare_path(name, file_bytes(layout)), layout)

    @property
    def address(self) -> ChannelAddress:
        return channel_files.address_of(self._file.path)

    def publish(self, version: Version, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Write a version and announce it. Tensors are copied one at a time; any order and any device will do."""
        newest = self._file.latest()
        if newest is not None and version <= newest.version:
            raise ValueError(f"cannot publish version {version} after version {newest.version}: versions only grow")
        generation = 1 if newest is None else newest.generation + 1
        self._readers.wait(generation % NUM_SLOTS)
        self._file.begun = generation
        table = self._file.table(generation)
        self._write(generation, table, weights)
        self._file.announce(Record(generation=generation, version=version, table_checksum=zlib.crc32(table.tobytes())))

    def close(self) -> None:
        """Remove the file. Readers that have it open can still read the last version."""
        self._file.close()
        self._file.path.unlink(missing_ok=True)

    def _write(self, generation: int, table: np.ndarray, weights: Iterable[tuple[str, Tensor]]) -> None:
        numbers = {entry.name: number for number, entry in enumerate(self._file.layout.entries)}
        for name, tensor in weights:
            number = numbers.pop(name, None)
            if number is None:
                raise ValueError(f"{name} is not in the layout, or was given twice")
            entry = self._file.layout.entries[number]
            found = (tuple(tensor.shape), _dtype_name(tensor.dtype))
            if found != (entry.shape, entry.dtype):
                raise ValueError(f"{name} is {found}, but the layout has {(entry.shape, entry.dtype)}")
            data = self._file.tensor_bytes(generation, number)
            _tensor_over(data, entry).copy_(tensor.detach())
            table[number] = checksum(data)
        if numbers:
            raise ValueError(f"{len(numbers)} tensors are missing, the first one is {next(iter(numbers))}")


class WeightReader:
    """One reader of a channel, a ``WeightSource``. If the file is replaced, the next fetch opens the new one."""

    def __init__(self, file: MappedFile) -> None:
        self._file = file

    @classmethod
    def open(cls, path: Path) -> Self:
        return cls(MappedFile(path, writable=False))

    def latest_version(self) -> Version | None:
        self._follow_path()
        newest = self._file.latest()
        return None if newest is None else Version(newest.version)

    def parameters(self) -> list[Parameter]:
        entries = self._file.layout.entries
        return [Parameter(name=entry.name, shape=entry.shape, dtype=entry.dtype) for entry in entries]

    def senders(self) -> list[Holding]:
        return [whole(self.parameters(), SENDER)]

    def fetch(self, minimum_version: Version, transfers: Sequence[Transfer]) -> Fetched:
        """Copy these slices of the newest version; a slice that several receivers need is copied once."""
        return self._fetch(minimum_version, list(dict.fromkeys(transfer.slice for transfer in transfers)))

    def fetch_whole(self, minimum_version: Version) -> tuple[Version, dict[str, Tensor]]:
        """Copy every parameter of the newest version."""
        slices = [Slice(parameter.name, parameter.box) for parameter in self.parameters()]
        version, copies = self._fetch(minimum_version, slices)
        return version, {slice.parameter: tensor for slice, tensor in copies.items()}

    def close(self) -> None:
        self._file.close()

    def _fetch(self, minimum_version: Version, slices: Sequence[Slice]) -> Fetched:
        self._follow_path()
        for _ in range(MAX_READS):
            newest = self._file.latest()
            if newest is None or newest.version < minimum_version:
                held = "none yet" if newest is None else str(newest.version)
                raise VersionNotPublished(f"version {minimum_version} is not published; the channel holds {held}")
            if (copies := self._read(newest, slices)) is not None:
                return Fetched(Version(newest.version), copies)
        raise CorruptWeights(
            f"{self._file.path}: all of {MAX_READS} copies were overwritten meanwhile or differ from their checksums"
        )

    def _read(self, record: Record, slices: Sequence[Slice]) -> dict[Slice, Tensor] | None:
        """Copy slices of this generation; None if a later one was announced, or the writer overwrote it meanwhile."""
        self._file.begin_read(record.generation)
        try:
            # After a later announcement, the writer may already have looked for reads of this slot and found none.
            if self._file.latest() != record:
                return None
            copied = self._copy(record, slices)
            # Two generations later, the writer writes into the slot that was copied.
            was_overtaken = self._file.begun >= record.generation + 2
        finally:
            self._file.end_read(record.generation)
        return None if was_overtaken or not copied.is_intact(record) else copied.tensors()

    def _copy(self, record: Record, slices: Sequence[Slice]) -> _Copied:
        copied = _Copied(table=self._file.table(record.generation).copy())
        numbers = {entry.name: number for number, entry in enumerate(self._file.layout.entries)}
        for wanted in slices:
            number = numbers[wanted.parameter]
            entry = self._file.layout.entries[number]
            data = self._file.tensor_bytes(record.generation, number)
            if wanted.box == tuple((0, size) for size in entry.shape):
                copied.whole[wanted] = (number, entry, data.copy())
            else:
                copied.parts[wanted] = (entry, _part(data, entry, wanted.box))
                if number not in copied.sums:
                    copied.sums[number] = checksum(data)  # there is a checksum of the whole tensor only
        return copied

    def _follow_path(self) -> None:
        try:
            is_same = self._file.path.stat().st_ino == self._file.inode
        except FileNotFoundError:
            return
        if not is_same:
            self._file.close()
            self._file = MappedFile(self._file.path, writable=False)


@dataclass(slots=True, kw_only=True)
class _Copied:
    """Copies from a slot. They may be used only if ``is_intact`` says so."""

    table: NDArray[np.uint32]
    whole: dict[Slice, tuple[int, Entry, NDArray[np.uint8]]] = field(default_factory=dict)
    parts: dict[Slice, tuple[Entry, NDArray[np.uint8]]] = field(default_factory=dict)
    sums: dict[int, int] = field(default_factory=dict)
    """Checksums of tensors that were copied in part, computed from the slot."""

    def is_intact(self, record: Record) -> bool:
        if zlib.crc32(self.table.tobytes()) != record.table_checksum:
            return False
        if any(self.table[number] != found for number, found in self.sums.items()):
            return False
        return all(self.table[number] == checksum(data) for number, _, data in self.whole.values())

    def tensors(self) -> dict[Slice, Tensor]:
        found = {wanted: _tensor_over(data, entry) for wanted, (_, entry, data) in self.whole.items()}
        for wanted, (entry, data) in self.parts.items():
            shape = [stop - start for start, stop in wanted.box]
            found[wanted] = torch.from_numpy(data).view(getattr(torch, entry.dtype)).view(shape)
        return found


def _part(data: NDArray[np.uint8], entry: Entry, box: Box) -> NDArray[np.uint8]:
    """Copy the bytes of a box of a tensor."""
    items = data[: entry.num_bytes].reshape(*entry.shape, ITEM_BYTES[entry.dtype])
    return items[tuple(slice(start, stop) for start, stop in box)].flatten()


def _tensor_over(data: np.ndarray, entry: Entry) -> Tensor:
    """Make a tensor that shares memory with the bytes."""
    dtype = getattr(torch, entry.dtype)
    if not entry.num_bytes:
        return torch.empty(entry.shape, dtype=dtype)
    return torch.from_numpy(data[: entry.num_bytes]).view(dtype).view(entry.shape)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
