"""The weight channel between processes of one machine: a double-buffered file in memory.

``publish`` writes the older of two slots and then announces it; ``pull`` copies the announced slot out, and believes
the copy only if no later publish had begun to overwrite it and every tensor matches its checksum. See
``mapped_file.py`` for the bytes.
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

    def __init__(self, file: MappedFile) -> None:
        self._file = file

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
        self._file.begun = generation
        table = self._file.table(generation)
        self._write(generation, table, weights)
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
            weights, is_intact = self._copy(newest)
            # Whoever writes two generations later writes into the slot just copied.
            was_overtaken = self._file.begun >= newest.generation + 2
            if is_intact and not was_overtaken:
                return Pulled(Version(newest.version), weights)
        raise CorruptWeights(f"{self._file.path}: no whole version in {MAX_READS} reads; the last one did not match")

    def close(self) -> None:
        self._file.close()

    def _copy(self, record: Record) -> tuple[dict[str, Tensor], bool]:
        table = self._file.table(record.generation).copy()
        is_intact = zlib.crc32(table.tobytes()) == record.table_checksum
        weights = {}
        for number, entry in enumerate(self._file.layout.entries):
            copied = self._file.tensor_bytes(record.generation, number).copy()
            is_intact = is_intact and checksum(copied) == table[number]
            weights[entry.name] = _tensor_over(copied, entry)
        return weights, is_intact

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
