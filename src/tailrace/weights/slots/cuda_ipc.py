"""The weight channel of one GPU: two slots in device memory (``two_slots.py``). Weights never leave the device.

The channel file is small: the control part, with the handles of the two slots. A reader opens the handles, and copies
from the writer's memory to its own.

* The two slots take the memory of two models. A fetch takes the memory of one more until the caller drops it.
* The slots end with the writer's process. The writer therefore holds a lock for its life, and a reader looks for that
  lock before and after each copy: if it is gone, the fetch raises ``WriterLost``. The kernel may give the slots away a
  moment before it removes the lock; such a copy differs from its checksums.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailrace.weights.address import CUDA_IPC
from tailrace.weights.channel import WriterLost
from tailrace.weights.sharding.layout import ALIGNMENT, Entry, WeightLayout
from tailrace.weights.sharding.transfer_plan import Slice
from tailrace.weights.slots import channel_files
from tailrace.weights.slots.control_file import (
    NUM_SLOTS,
    ControlFile,
    SlotRecord,
    control_bytes,
    new_file,
    table_checksum,
)
from tailrace.weights.slots.device_checksum import checksums
from tailrace.weights.slots.device_memory import CudaMemory, DeviceMemory
from tailrace.weights.slots.slot_locks import READER_LIMIT_S, ReaderWait
from tailrace.weights.slots.two_slots import WeightReader, WeightWriter


def create(path: Path, layout: WeightLayout, memory: DeviceMemory) -> WeightWriter:
    """Make a new, empty channel. A channel that has this path is replaced."""
    return WeightWriter(DeviceSlots.create(path, layout, memory))


def create_for(name: str, layout: WeightLayout, device: torch.device) -> WeightWriter:
    """Make a new, empty channel for the run with this name, on a CUDA device."""
    return create(channel_files.prepare_path(name, control_bytes(layout)).path, layout, CudaMemory(device))


def open_reader(path: Path, device: torch.device) -> WeightReader:
    """Open a channel for a reader whose weights are on this CUDA device."""
    if device.type != "cuda":
        raise ValueError(f"weights are published on a GPU (CUDA IPC), but the rollout runs on {device}")
    return WeightReader(DeviceSlots(path, CudaMemory(device)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedSlots:
    """What a reader needs to open the slots. It is the note of the channel file."""

    device: str
    num_bytes: int
    """Size of one slot."""
    handles: tuple[str, ...]
    """Handle of each slot, in hexadecimal digits."""


class DeviceSlots(ControlFile):
    """A control file whose slots are blocks of device memory. Readers open the blocks when they first need them."""

    kind = CUDA_IPC

    def __init__(self, path: Path, memory: DeviceMemory, *, allocated: Sequence[Tensor] = ()) -> None:
        """``allocated``: the writer's blocks. A reader has none."""
        super().__init__(path, writable=bool(allocated))
        if not self.note:
            raise ValueError(f"the weights of {path} are in shared memory, not on a device")
        self._memory, self._allocated = memory, allocated
        self._opened: list[Tensor] = []

    @classmethod
    def create(cls, path: Path, layout: WeightLayout, memory: DeviceMemory) -> Self:
        num_bytes = max(layout.num_bytes, ALIGNMENT)
        blocks: list[Tensor] = []
        try:
            for _ in range(NUM_SLOTS):
                blocks.append(memory.allocate(num_bytes))
            handles = tuple(memory.export(block).hex() for block in blocks)
            exported = ExportedSlots(device=memory.identity, num_bytes=num_bytes, handles=handles)
            with new_file(path, layout, note=json.dumps(asdict(exported))):
                file = cls(path, memory, allocated=blocks)
        except BaseException:
            for block in blocks:
                memory.free(block)
            raise
        file.locks.hold_as_writer()
        return file

    def reopened(self) -> DeviceSlots:
        self.close()
        return DeviceSlots(self.path, self._memory)

    def slot(self, generation: int) -> Tensor:
        """Return the block of a generation."""
        blocks = self._allocated or self._opened or self._open()
        return blocks[generation % NUM_SLOTS]

    def write(self, generation: int, number: int, tensor: Tensor) -> None:
        _tensor_in(self.slot(generation), self.layout.entries[number]).copy_(tensor)

    def finish_write(self, generation: int) -> None:
        # The copy to the host waits for all that was done before on this stream: every tensor is written.
        self.table(generation)[:] = _to_host(checksums(self.slot(generation), self.layout))

    def copy(self, record: SlotRecord, slices: Sequence[Slice]) -> DeviceCopy:
        copied = DeviceCopy(layout=self.layout, table=self.table(record.generation).copy())
        if slices:
            self._check_writer()
            copied.take(self.slot(record.generation), slices)
            self._check_writer()
        return copied

    def close(self) -> None:
        if self._allocated:
            self.locks.end_as_writer()  # a read that begins from now on is refused
            readers = ReaderWait(self.locks, limit_s=READER_LIMIT_S)
            for slot in range(NUM_SLOTS):
                readers.wait(slot)
            for block in self._allocated:
                self._memory.free(block)
            self._allocated = ()
        self._close_opened()
        super().close()

    def _check_writer(self) -> None:
        if self._allocated or self.locks.has_writer():
            return
        self._close_opened()  # otherwise the memory of the dead writer stays in use
        raise WriterLost("the process that published the weights has ended")

    def _open(self) -> list[Tensor]:
        exported = ExportedSlots(**json.loads(self.note))
        if exported.device != self._memory.identity:
            raise ValueError(
                f"weights are published on device {exported.device}, but the rollout is on {self._memory.identity};"
                ' trainer.weight_channel = "shared-memory" works between devices'
            )
        for handle in exported.handles:
            self._opened.append(self._open_block(bytes.fromhex(handle), exported.num_bytes))
        return self._opened

    def _open_block(self, handle: bytes, num_bytes: int) -> Tensor:
        try:
            return self._memory.open(handle, num_bytes)
        except RuntimeError as error:
            self._check_writer()
            self._close_opened()
            raise RuntimeError(
                f"the published weights cannot be opened on the device ({error});"
                ' trainer.weight_channel = "shared-memory" works without that'
            ) from error

    def _close_opened(self) -> None:
        while self._opened:
            self._memory.close(self._opened.pop())


@dataclass(slots=True, kw_only=True)
class DeviceCopy:
    """Copies on the device. The whole model is copied at once, as one block; parts one by one."""

    layout: WeightLayout
    table: NDArray[np.uint64]
    block: Tensor | None = None
    parts: dict[Slice, Tensor] = field(default_factory=dict)
    sums: NDArray[np.uint64] | None = None
    """Checksums of all tensors, computed from the slot; None if the block is checked instead."""

    def take(self, slot: Tensor, slices: Sequence[Slice]) -> None:
        """Copy slices, and return when the copies are complete."""
        entries = {entry.name: entry for entry in self.layout.entries}
        if {Slice(entry.name, entry.box) for entry in self.layout.entries} == set(slices):
            self.block = slot.clone()
            self.parts = {wanted: _tensor_in(self.block, entries[wanted.parameter]) for wanted in slices}
            if slot.is_cuda:
                torch.cuda.current_stream(slot.device).synchronize()
            return
        for wanted in slices:
            place = tuple(slice(start, stop) for start, stop in wanted.box)
            self.parts[wanted] = _tensor_in(slot, entries[wanted.parameter])[place].clone()
        self.sums = _to_host(checksums(slot, self.layout))  # waits for the copies

    def is_intact(self, record: SlotRecord) -> bool:
        if table_checksum(self.table) != record.table_checksum:
            return False
        sums = self.sums if self.block is None else _to_host(checksums(self.block, self.layout))
        return sums is None or self._agree(sums)

    def tensors(self) -> dict[Slice, Tensor]:
        return self.parts

    def _agree(self, sums: NDArray[np.uint64]) -> bool:
        """Whether the tensors that were copied have the checksums of the table."""
        wanted = {parameter for parameter, _ in self.parts}
        numbers = [number for number, entry in enumerate(self.layout.entries) if entry.name in wanted]
        return bool(np.array_equal(sums[numbers], self.table[numbers]))


def _tensor_in(block: Tensor, entry: Entry) -> Tensor:
    """Make a tensor that shares memory with its bytes in the block."""
    data = block[entry.offset : entry.offset + entry.num_bytes]
    return data.view(getattr(torch, entry.dtype)).view(entry.shape)


def _to_host(sums: Tensor) -> NDArray[np.uint64]:
    """Copy checksums to the host, all at once."""
    found: NDArray[np.int64] = sums.cpu().numpy()
    return found.view(np.uint64)
