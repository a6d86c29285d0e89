"""The parameter server on one machine: a double-buffered file in memory, one writer, any number of readers.

``publish`` writes the older of two slots and then announces it; ``pull`` copies the announced slot out.

* The writer comes first: a pull goes to the version announced last and never to the slot that is written next, so a
  publish waits for pulls that had begun before the last announcement and for no other, however many come after them.
* A reader that dies lets go of its slot. For one that lives and does not move on, the writer waits ``PATIENCE_S`` and
  then overwrites what it reads.
* A pull believes its copy only if no publish had begun to overwrite it and every tensor matches its checksum;
  otherwise it reads again. So whatever happens to a lock, no pull returns a mixture.

See ``mapped_file.py`` for the bytes.
"""

from __future__ import annotations

import shutil
import tempfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from tailrace.core.ids import Version
from tailrace.weights.channel import CorruptWeights, Pulled, VersionNotPublished
from tailrace.weights.layout import Entry, WeightLayout
from tailrace.weights.mapped_file import MappedFile, Record, checksum, file_bytes

MEMORY_DIRECTORY = Path("/dev/shm")
PATIENCE_S = 30.0
MAX_READS = 100
"""Copies that were overtaken by the writer, or do not match their checksums, before a pull gives up."""


def layout_of(weights: Iterable[tuple[str, Tensor]]) -> WeightLayout:
    return WeightLayout.build((name, tuple(tensor.shape), _dtype_name(tensor.dtype)) for name, tensor in weights)


def channel_path(name: str, layout: WeightLayout) -> Path:
    """Where to put the channel file: in memory if it fits there, else among the temporary files.

    The same name gives the same path, so a run that was killed leaves nothing its next start does not replace.
    """
    fits = MEMORY_DIRECTORY.is_dir() and shutil.disk_usage(MEMORY_DIRECTORY).free > file_bytes(layout)
    return (MEMORY_DIRECTORY if fits else Path(tempfile.gettempdir())) / f"tailrace-{name}.weights"


class WeightWriter:
    """The only writer of a channel."""

    def __init__(self, file: MappedFile, *, patience_s: float = PATIENCE_S) -> None:
        self._file, self._patience_s = file, patience_s

    @classmethod
    def create(cls, path: Path, layout: WeightLayout) -> Self:
        """A new, empty channel; one that had this path before is replaced."""
        return cls(MappedFile.create(path, layout))

    def publish(self, version: Version, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Make a version the newest one. Tensors are taken one at a time, in any order, from any device."""
        newest = self._file.latest()
        if newest is not None and version <= newest.version:
            raise ValueError(f"version {version} comes after version {newest.version}; versions only grow")
        generation = 1 if newest is None else newest.generation + 1
        self._file.own(generation, patience_s=self._patience_s)
        try:
            self._file.begun = generation
            table = self._file.table(generation)
            self._write(generation, table, weights)
        finally:
            # Before the announcement: whoever hears of the version can read it at once.
            self._file.leave(generation)
        self._file.announce(Record(generation=generation, version=version, table_checksum=zlib.crc32(table.tobytes())))

    def close(self) -> None:
        """Readers that have the channel open keep what was published; its name goes away."""
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
                raise ValueError(f"{name} is {found}, the layout has {(entry.shape, entry.dtype)}")
            data = self._file.tensor_bytes(generation, number)
            _tensor_over(data, entry).copy_(tensor.detach())
            table[number] = checksum(data)
        if numbers:
            raise ValueError(f"{len(numbers)} tensors are missing, {next(iter(numbers))} for one")


class WeightReader:
    """One reader of a channel. A channel made anew under the same path is noticed at the next pull."""

    def __init__(self, file: MappedFile) -> None:
        self._file = file

    @classmethod
    def open(cls, path: Path) -> Self:
        return cls(MappedFile(path, writable=False))

    def latest_version(self) -> Version | None:
        self._follow_path()
        newest = self._file.latest()
        return None if newest is None else Version(newest.version)

    def pull(self, minimum_version: Version) -> Pulled:
        """The newest version, as copies. It must be at least ``minimum_version``."""
        self._follow_path()
        for _ in range(MAX_READS):
            newest = self._file.latest()
            if newest is None or newest.version < minimum_version:
                held = "none yet" if newest is None else str(newest.version)
                raise VersionNotPublished(f"version {minimum_version} is not published; the channel holds {held}")
            if (weights := self._read(newest)) is not None:
                return Pulled(Version(newest.version), weights)
        raise CorruptWeights(f"{self._file.path}: no whole version in {MAX_READS} reads; the last one did not match")

    def close(self) -> None:
        self._file.close()

    def _read(self, record: Record) -> dict[str, Tensor] | None:
        """This generation; None if there is a later one, or if it was overwritten meanwhile."""
        if not self._file.share(record.generation):
            return None
        try:
            if self._file.latest() != record:
                return None
            table = self._file.table(record.generation).copy()
            copies = [self._file.tensor_bytes(record.generation, number).copy() for number in range(len(table))]
            # Whoever writes two generations later writes into the slot just copied.
            was_overtaken = self._file.begun >= record.generation + 2
        finally:
            self._file.leave(record.generation)
        is_intact = zlib.crc32(table.tobytes()) == record.table_checksum
        is_intact = is_intact and all(checksum(data) == table[number] for number, data in enumerate(copies))
        if was_overtaken or not is_intact:
            return None
        entries = self._file.layout.entries
        return {entry.name: _tensor_over(data, entry) for entry, data in zip(entries, copies, strict=True)}

    def _follow_path(self) -> None:
        try:
            is_same = self._file.path.stat().st_ino == self._file.inode
        except FileNotFoundError:
            return
        if not is_same:
            self._file.close()
            self._file = MappedFile(self._file.path, writable=False)


def _tensor_over(data: np.ndarray, entry: Entry) -> Tensor:
    """A tensor that shares memory with the bytes."""
    dtype = getattr(torch, entry.dtype)
    if not entry.num_bytes:
        return torch.empty(entry.shape, dtype=dtype)
    return torch.from_numpy(data[: entry.num_bytes]).view(dtype).view(entry.shape)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
