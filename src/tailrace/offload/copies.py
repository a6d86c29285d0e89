"""Moves the weights of layers between host and device. A layer's weights are one piece of bytes.

On CUDA they lie in page-locked memory of the host and come on a stream of their own. Events keep the order: a copy
begins after all work that was queued before it, and work that is queued after ``arrived`` waits for the copy.
On a CPU host and device are the same memory, so nothing is copied.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from tailrace.offload.page_locked import PageLockedMemory
from tailrace.offload.turns import NUM_BUFFERS


class Copies(Protocol):
    @property
    def is_one_memory(self) -> bool:
        """Whether the device computes on the host's memory."""
        ...

    def host_memory(self, num_bytes: int) -> Tensor: ...

    def device_memory(self, num_bytes: int) -> Tensor: ...

    def open_buffers(self, num_bytes: int) -> None:
        """Take memory for the buffers, or give it back (0)."""
        ...

    def begin(self, buffer: int, host: Tensor) -> None:
        """Copy into a buffer, after all work that was queued so far."""
        ...

    def arrived(self, buffer: int, num_bytes: int) -> Tensor:
        """What was copied there last. Work that is queued from now on comes after the copy."""
        ...


def copies_to(device: torch.device) -> Copies:
    return CudaCopies(device) if device.type == "cuda" else SameMemory()


class SameMemory:
    is_one_memory = True

    def __init__(self) -> None:
        self._buffers: list[Tensor | None] = [None] * NUM_BUFFERS

    def host_memory(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def device_memory(self, num_bytes: int) -> Tensor:
        return self.host_memory(num_bytes)

    def open_buffers(self, num_bytes: int) -> None:
        self._buffers = [None] * NUM_BUFFERS

    def begin(self, buffer: int, host: Tensor) -> None:
        self._buffers[buffer] = host

    def arrived(self, buffer: int, num_bytes: int) -> Tensor:
        found = self._buffers[buffer]
        assert found is not None, "a layer was entered before its copy began"
        return found


class CudaCopies:
    """Owns the buffers, the copy stream and its events."""

    is_one_memory = False

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._buffers: list[Tensor] = []
        self._arrivals = [torch.cuda.Event() for _ in range(NUM_BUFFERS)]
        self._begins = [torch.cuda.Event() for _ in range(NUM_BUFFERS)]
        self._page_locked = PageLockedMemory(device)

    def host_memory(self, num_bytes: int) -> Tensor:
        return self._page_locked.take(num_bytes)

    def device_memory(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, device=self._device)

    def open_buffers(self, num_bytes: int) -> None:
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)  # before torch gives the memory of the old ones to others
        self._buffers = []
        if num_bytes:
            self._buffers = [self.device_memory(num_bytes) for _ in range(NUM_BUFFERS)]
            for buffer in self._buffers:
                buffer.record_stream(self._stream)

    def begin(self, buffer: int, host: Tensor) -> None:
        self._begins[buffer].record(torch.cuda.current_stream(self._device))
        self._stream.wait_event(self._begins[buffer])
        with torch.cuda.stream(self._stream):
            self._buffers[buffer][: len(host)].copy_(host, non_blocking=True)
        self._arrivals[buffer].record(self._stream)

    def arrived(self, buffer: int, num_bytes: int) -> Tensor:
        torch.cuda.current_stream(self._device).wait_event(self._arrivals[buffer])
        return self._buffers[buffer][:num_bytes]
