"""The file of the shared-memory channel: the control part (``control_file.py``), then two slots with the weights."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tailrace.weights.address import SHARED_MEMORY
from tailrace.weights.sharding.layout import Entry, WeightLayout, align
from tailrace.weights.sharding.stored_bytes import copy_bytes, tensor_of, tensor_over
from tailrace.weights.sharding.transfer_plan import Slice
from tailrace.weights.slots.control_file import (
    NUM_SLOTS,
    PAGE,
    ControlFile,
    SlotRecord,
    control_bytes,
    new_file,
    table_checksum,
)

SUM_COLUMNS = 512


class MappedFile(ControlFile):
    """A channel file with its weights, mapped into memory."""

    kind = SHARED_MEMORY

    def __init__(self, path: Path, *, writable: bool) -> None:
        super().__init__(path, writable=writable)
        if self.note:
            raise ValueError(f"the weights of {path} are not in the file: {self.note}")
        self._slots_offset = control_bytes(self.layout)

    @classmethod
    def create(cls, path: Path, layout: WeightLayout) -> Self:
        with new_file(path, layout, slot_bytes=_slot_bytes(layout)):
            return cls(path, writable=True)

    def reopened(self) -> MappedFile:
        self.close()
        return MappedFile(self.path, writable=False)

    def tensor_bytes(self, generation: int, index: int) -> NDArray[np.uint8]:
        """Return a view of a tensor's bytes, with the padding after them."""
        entry = self.layout.entries[index]
        offset = self._slots_offset + generation % NUM_SLOTS * _slot_bytes(self.layout) + entry.offset
        return np.frombuffer(self._map, np.uint8, entry.padded_bytes, offset)

    def write(self, generation: int, number: int, tensor: Tensor) -> None:
        data = self.tensor_bytes(generation, number)
        tensor_over(data, self.layout.entries[number]).copy_(tensor)
        self.table(generation)[number] = checksum(data)

    def finish_write(self, generation: int) -> None:
        pass  # the table is complete

    def copy(self, record: SlotRecord, slices: Sequence[Slice]) -> MappedCopy:
        copied = MappedCopy(table=self.table(record.generation).copy())
        numbers = {entry.name: number for number, entry in enumerate(self.layout.entries)}
        for wanted in slices:
            number = numbers[wanted.parameter]
            entry = self.layout.entries[number]
            data = self.tensor_bytes(record.generation, number)
            if wanted.box == entry.box:
                copied.whole[wanted] = (number, entry, data.copy())
            else:
                copied.parts[wanted] = (entry, copy_bytes(data, entry, wanted.box))
                if number not in copied.sums:
                    copied.sums[number] = checksum(data)  # there is a checksum of the whole tensor only
        return copied


@dataclass(slots=True, kw_only=True)
class MappedCopy:
    """Copies of tensors and parts of tensors."""

    table: NDArray[np.uint64]
    whole: dict[Slice, tuple[int, Entry, NDArray[np.uint8]]] = field(default_factory=dict)
    parts: dict[Slice, tuple[Entry, NDArray[np.uint8]]] = field(default_factory=dict)
    sums: dict[int, int] = field(default_factory=dict)
    """Checksums of tensors that were copied in part, computed from the slot."""

    def is_intact(self, record: SlotRecord) -> bool:
        if table_checksum(self.table) != record.table_checksum:
            return False
        if any(self.table[number] != found for number, found in self.sums.items()):
            return False
        return all(self.table[number] == checksum(data) for number, _, data in self.whole.values())

    def tensors(self) -> dict[Slice, Tensor]:
        found = {wanted: tensor_over(data, entry) for wanted, (_, entry, data) in self.whole.items()}
        for wanted, (entry, data) in self.parts.items():
            found[wanted] = tensor_of(data, entry, wanted.box)
        return found


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
    return control_bytes(layout) + NUM_SLOTS * _slot_bytes(layout)


def _slot_bytes(layout: WeightLayout) -> int:
    return align(layout.num_bytes, PAGE)
