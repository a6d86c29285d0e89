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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailrace.core.ids import Version
from tailrace.weights.channel import CorruptWeights, Pulled, VersionNotPublished
from tailrace.weights.layout import ITEM_BYTES, Entry, WeightLayout
from tailrace.weights.mapped_file import MappedFile, Record, checksum, file_bytes
from tailrace.weights.plan import Slice
from tailrace.weights.sharding import Box, Parameter

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

    def parameters(self) -> list[Parameter]:
        entries = self._file.layout.entries
        return [Parameter(name=entry.name, shape=entry.shape, dtype=entry.dtype) for entry in entries]

    def pull(self, minimum_version: Version) -> Pulled:
        """The newest version, as copies. It must be at least ``minimum_version``."""
        everything = [Slice(parameter.name, parameter.box) for parameter in self.parameters()]
        version, slices = self.fetch(minimum_version, everything)
        return Pulled(version, {slice.parameter: tensor for slice, tensor in slices.items()})

    def fetch(self, minimum_version: Version, slices: Sequence[Slice]) -> tuple[Version, dict[Slice, Tensor]]:
        """These slices of the newest version, which is at least ``minimum_version``, as copies."""
        self._follow_path()
        for _ in range(MAX_READS):
            newest = self._file.latest()
            if newest is None or newest.version < minimum_version:
                held = "none yet" if newest is None else str(newest.version)
                raise VersionNotPublished(f"version {minimum_version} is not published; the channel holds {held}")
            if (copies := self._read(newest, slices)) is not None:
                return Version(newest.version), copies
        raise CorruptWeights(f"{self._file.path}: no whole version in {MAX_READS} reads; the last one did not match")

    def close(self) -> None:
        self._file.close()

    def _read(self, record: Record, slices: Sequence[Slice]) -> dict[Slice, Tensor] | None:
        """Slices of this generation; None if there is a later one, or if it was overwritten meanwhile."""
        if not self._file.share(record.generation):
            return None
        try:
            if self._file.latest() != record:
                return None
            copied = self._copy(record, slices)
            # Whoever writes two generations later writes into the slot just copied.
            was_overtaken = self._file.begun >= record.generation + 2
        finally:
            self._file.leave(record.generation)
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
                    copied.sums[number] = checksum(data)  # a part has none of its own
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
    """What was copied of a slot, to be believed only if it is intact."""

    table: NDArray[np.uint32]
    whole: dict[Slice, tuple[int, Entry, NDArray[np.uint8]]] = field(default_factory=dict)
    parts: dict[Slice, tuple[Entry, NDArray[np.uint8]]] = field(default_factory=dict)
    sums: dict[int, int] = field(default_factory=dict)
    """Checksums, where they lie, of tensors that were copied in part."""

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
    """A copy of the bytes of a box of a tensor."""
    items = data[: entry.num_bytes].reshape(*entry.shape, ITEM_BYTES[entry.dtype])
    return items[tuple(slice(start, stop) for start, stop in box)].flatten()


def _tensor_over(data: np.ndarray, entry: Entry) -> Tensor:
    """A tensor that shares memory with the bytes."""
    dtype = getattr(torch, entry.dtype)
    if not entry.num_bytes:
        return torch.empty(entry.shape, dtype=dtype)
    return torch.from_numpy(data[: entry.num_bytes]).view(dtype).view(entry.shape)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
