"""Blocks of device memory that another process can open. ``CudaMemory`` is the memory of a CUDA device.

Blocks are allocated outside torch's caching allocator, which may move or join its blocks and then cannot export them.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from tailrace.devices import cuda_driver
from tailrace.weights.sharding.layout import align


class DeviceMemory(Protocol):
    @property
    def identity(self) -> str:
        """Name of the device, the same in every process."""
        ...

    def allocate(self, num_bytes: int) -> Tensor:
        """Return a new block as a tensor of bytes."""
        ...

    def free(self, block: Tensor) -> None:
        """Give an allocated block back. The tensor must not be used after that."""
        ...

    def export(self, block: Tensor) -> bytes:
        """Return a handle with which another process can open the block."""
        ...

    def open(self, handle: bytes, num_bytes: int) -> Tensor:
        """Return a block that another process has exported."""
        ...

    def close(self, block: Tensor) -> None:
        """Detach a block that was opened. The tensor must not be used after that."""
        ...


_SHARED_ALONE = 2 << 20
"""The driver may put smaller allocations into one block, and a handle always shares the whole block."""
_exported_here: dict[bytes, int] = {}
"""Handles that this process has exported, and their addresses. The driver lets no process open its own."""


class CudaMemory:
    """Memory of one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self._device = torch.device("cuda", index)
        self._opened: set[int] = set()

    @property
    def identity(self) -> str:
        return str(torch.cuda.get_device_properties(self._device).uuid)

    def allocate(self, num_bytes: int) -> Tensor:
        address = cuda_driver.allocate(align(num_bytes, _SHARED_ALONE), self._device)
        return cuda_driver.bytes_at(address, num_bytes, self._device)

    def free(self, block: Tensor) -> None:
        address = block.data_ptr()
        for handle in [handle for handle, exported in _exported_here.items() if exported == address]:
            del _exported_here[handle]
        cuda_driver.free(address, self._device)

    def export(self, block: Tensor) -> bytes:
        handle = cuda_driver.export(block.data_ptr(), self._device)
        _exported_here[handle] = block.data_ptr()
        return handle

    def open(self, handle: bytes, num_bytes: int) -> Tensor:
        address = _exported_here.get(handle)
        if address is None:
            address = cuda_driver.open_exported(handle, self._device)
            self._opened.add(address)
        return cuda_driver.bytes_at(address, num_bytes, self._device)

    def close(self, block: Tensor) -> None:
        address = block.data_ptr()
        if address in self._opened:
            self._opened.discard(address)
            cuda_driver.close_exported(address, self._device)
