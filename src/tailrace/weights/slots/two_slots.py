"""A weight channel of two slots: one writer, any number of readers. Where the slots lie is up to the ``SlotFile``.

``publish`` writes the older slot and then announces it. ``fetch`` copies from the slot that was announced last.

* The writer has priority. A read always goes to the version announced last, never to the slot that is written next. So
  a publish waits only for reads that began before the last announcement.
* The lock of a reader that dies is removed by the kernel. If a read takes longer than ``READER_LIMIT_S`` (its process
  is stopped, for instance), the writer overwrites the slot, and does not wait for that read again.
* A read returns its copy only if the writer had not begun to overwrite it and every tensor matches its checksum;
  otherwise it reads again. So a reader that was overtaken never returns a mixture of two versions.

``control_file.py`` describes what writer and readers tell each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from tailrace.core.ids import Version
from tailrace.weights.address import ChannelAddress
from tailrace.weights.channel import CorruptWeights, Fetched, VersionNotPublished
from tailrace.weights.sharding.layout import WeightLayout
from tailrace.weights.sharding.table import Holding, Parameter, whole
from tailrace.weights.sharding.transfer_plan import Slice, Transfer
from tailrace.weights.slots.control_file import NUM_SLOTS, SlotRecord
from tailrace.weights.slots.slot_locks import READER_LIMIT_S, ReaderWait, SlotLocks

MAX_READS = 100
"""Number of reads that may be overtaken by the writer, or differ from their checksums, before a fetch fails."""
SENDER = "parameter server"
"""Name of the only sender of this channel. It holds the whole model."""


class Copied(Protocol):
    """Copies from a slot. They may be used only if ``is_intact`` says so."""

    def is_intact(self, record: SlotRecord) -> bool: ...
    def tensors(self) -> dict[Slice, Tensor]: ...


class SlotFile(Protocol):
    """A control file and its two slots: the methods of ``ControlFile``, and how weights are written and copied."""

    @property
    def kind(self) -> str:
        """Kind of its address."""
        ...

    path: Path
    inode: int
    locks: SlotLocks
    layout: WeightLayout
    begun: int

    def latest(self) -> SlotRecord | None: ...
    def announce(self, generation: int, version: int) -> None: ...
    def begin_read(self, generation: int) -> None: ...
    def end_read(self, generation: int) -> None: ...

    def write(self, generation: int, number: int, tensor: Tensor) -> None:
        """Write the tensor of entry ``number`` of the layout."""
        ...

    def finish_write(self, generation: int) -> None:
        """Return when all tensors are written and the table has their checksums."""
        ...

    def copy(self, record: SlotRecord, slices: Sequence[Slice]) -> Copied: ...

    def reopened(self) -> SlotFile:
        """Close this file, and open the one that has its path now."""
        ...

    def close(self) -> None: ...


def layout_of(weights: Iterable[tuple[str, Tensor]]) -> WeightLayout:
    return WeightLayout.build((name, tuple(tensor.shape), _dtype_name(tensor.dtype)) for name, tensor in weights)


class WeightWriter:
    """The writer of a channel, a ``WeightSink``. There must be only one."""

    def __init__(self, file: SlotFile, readers: ReaderWait | None = None) -> None:
        self._file = file
        self._readers = ReaderWait(file.locks, limit_s=READER_LIMIT_S) if readers is None else readers

    @property
    def address(self) -> ChannelAddress:
        return ChannelAddress(kind=self._file.kind, location=str(self._file.path))

    def publish(self, version: Version, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Write a version and announce it. Tensors are copied one at a time; any order and any device will do."""
        newest = self._file.latest()
        if newest is not None and version <= newest.version:
            raise ValueError(f"cannot publish version {version} after version {newest.version}: versions only grow")
        generation = 1 if newest is None else newest.generation + 1
        self._readers.wait(generation % NUM_SLOTS)
        self._file.begun = generation
        self._write(generation, weights)
        self._file.finish_write(generation)
        self._file.announce(generation, version)

    def close(self) -> None:
        """Remove the file."""
        self._file.close()
        self._file.path.unlink(missing_ok=True)

    def _write(self, generation: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        numbers = {entry.name: number for number, entry in enumerate(self._file.layout.entries)}
        for name, tensor in weights:
            number = numbers.pop(name, None)
            if number is None:
                raise ValueError(f"{name} is not in the layout, or was given twice")
            entry = self._file.layout.entries[number]
            found = (tuple(tensor.shape), _dtype_name(tensor.dtype))
            if found != (entry.shape, entry.dtype):
                raise ValueError(f"{name} is {found}, but the layout has {(entry.shape, entry.dtype)}")
            self._file.write(generation, number, tensor.detach())
        if numbers:
            raise ValueError(f"{len(numbers)} tensors are missing, the first one is {next(iter(numbers))}")


class WeightReader:
    """One reader of a channel, a ``WeightSource``. If the file is replaced, the next fetch opens the new one."""

    def __init__(self, file: SlotFile) -> None:
        self._file = file

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

    def _read(self, record: SlotRecord, slices: Sequence[Slice]) -> dict[Slice, Tensor] | None:
        """Copy slices of this generation; None if a later one was announced, or the writer overwrote it meanwhile."""
        self._file.begin_read(record.generation)
        try:
            # After a later announcement, the writer may already have looked for reads of this slot and found none.
            if self._file.latest() != record:
                return None
            copied = self._file.copy(record, slices)
            # Two generations later, the writer writes into the slot that was copied.
            was_overtaken = self._file.begun >= record.generation + 2
        finally:
            self._file.end_read(record.generation)
        return None if was_overtaken or not copied.is_intact(record) else copied.tensors()

    def _follow_path(self) -> None:
        try:
            is_same = self._file.path.stat().st_ino == self._file.inode
        except FileNotFoundError:
            return
        if not is_same:
            self._file = self._file.reopened()


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
