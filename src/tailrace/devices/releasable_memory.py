"""Tensors whose memory can be given back and taken again, while the tensors themselves stay.

``release`` gives the memory back. ``restore`` takes memory again, with undefined contents. In between the tensors must
not be used. There are two kinds:

* ``MappedMemory``, on CUDA: addresses are reserved once, and physical memory comes and goes behind them. The addresses
  of tensors never change, so CUDA graphs that use them stay valid. Other processes can use released memory at once.
  Deleting the object frees everything.
* ``StorageMemory``, on any device: torch allocates, and addresses change with every ``restore``. On CUDA torch keeps
  released memory for itself, until ``torch.cuda.empty_cache``.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from typing import Protocol

import torch

from tailrace.devices import cuda_driver

_ALIGNMENT = 512
"""Tensors begin at multiples of this many bytes, as those of torch's own allocator do."""


class ReleasableMemory(Protocol):
    @property
    def device(self) -> torch.device: ...

    @property
    def keeps_addresses(self) -> bool:
        """Whether tensors have the same address after ``restore`` as before ``release``."""
        ...

    def empty(self, *sizes: int, dtype: torch.dtype) -> torch.Tensor:
        """A new tensor with undefined contents."""
        ...

    def release(self) -> None:
        """Give the memory of all tensors back. Work that is already queued on the device may still use it:
        ``MappedMemory`` waits for that work, and torch's allocator keeps the order of the stream."""
        ...

    def restore(self) -> None:
        """Take memory for all tensors again. If there is too little, an error is raised and nothing is taken."""
        ...


def releasable_memory(device: torch.device) -> ReleasableMemory:
    """The kind that keeps addresses, where the device can do that."""
    if device.type == "cuda" and cuda_driver.can_map(device):
        return MappedMemory(device)
    return StorageMemory(device)


class StorageMemory:
    keeps_addresses = False

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._storages: list[tuple[torch.UntypedStorage, int]] = []
        """Each with its size."""

    def empty(self, *sizes: int, dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.empty(*sizes, dtype=dtype, device=self.device)
        storage = tensor.untyped_storage()
        self._storages.append((storage, storage.nbytes()))
        return tensor

    def release(self) -> None:
        for storage, _ in self._storages:
            storage.resize_(0)

    def restore(self) -> None:
        try:
            for storage, num_bytes in self._storages:
                storage.resize_(num_bytes)
        except RuntimeError:
            self.release()
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """Addresses with physical memory behind them."""

    address: int
    num_bytes: int
    handle: int


class MappedMemory:
    keeps_addresses = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._unit = cuda_driver.granularity(device)
        # Reserved addresses cost nothing. The device has no more memory than this.
        num_bytes = _round_up(torch.cuda.mem_get_info(device)[1], self._unit)
        start = cuda_driver.reserve(num_bytes, device)
        self._start, self._used_end, self._end = start, start, start
        """Reserved addresses begin at ``_start``; tensors end at ``_used_end``, memory at ``_end``."""
        self._pieces: list[_Piece] = []
        # Not at the end of the process: then the driver frees everything anyway.
        weakref.finalize(self, _free, start, num_bytes, self._pieces, device).atexit = False

    def empty(self, *sizes: int, dtype: torch.dtype) -> torch.Tensor:
        address, num_bytes = self._used_end, math.prod(sizes) * dtype.itemsize
        used_end = _round_up(address + num_bytes, _ALIGNMENT)
        if used_end > self._end:
            end = self._start + _round_up(used_end - self._start, self._unit)
            self._map(self._end, end)
            self._end = end
        self._used_end = used_end
        return cuda_driver.bytes_at(address, num_bytes, self.device).view(dtype).view(sizes)

    def release(self) -> None:
        _unmap(self._pieces, self.device)

    def restore(self) -> None:
        if not self._pieces and self._end > self._start:
            self._map(self._start, self._end)

    def _map(self, start: int, end: int) -> None:
        try:
            handle = cuda_driver.map_memory(start, end - start, self.device)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()  # torch may keep blocks that nobody uses
            handle = cuda_driver.map_memory(start, end - start, self.device)
        self._pieces.append(_Piece(address=start, num_bytes=end - start, handle=handle))


def _unmap(pieces: list[_Piece], device: torch.device) -> None:
    if pieces:
        torch.cuda.synchronize(device)
    while pieces:
        piece = pieces.pop()
        cuda_driver.unmap_memory(piece.address, piece.num_bytes, piece.handle, device)


def _free(start: int, num_bytes: int, pieces: list[_Piece], device: torch.device) -> None:
    _unmap(pieces, device)
    cuda_driver.free_reserved(start, num_bytes, device)


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
