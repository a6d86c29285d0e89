"""Copies between two memories, made on a CPU: as early or as late as a device may make them."""

from __future__ import annotations

import torch
from torch import Tensor

from tailrace.offload.turns import NUM_BUFFERS


class LateCopies:
    """Stands for a device. What nobody may read is not a number: a buffer whose copy has begun and not arrived, and a
    buffer after its memory was given back."""

    is_one_memory = False

    def __init__(self, *, is_late: bool) -> None:
        """``is_late``: a copy is made when somebody waits for it; else when it begins."""
        self._is_late = is_late
        self.buffers: list[Tensor] = []
        self._under_way: dict[int, Tensor] = {}
        self.num_copies = 0
        self.on_device: list[Tensor] = []

    def host_memory(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def device_memory(self, num_bytes: int) -> Tensor:
        self.on_device.append(torch.empty(num_bytes, dtype=torch.uint8))
        return self.on_device[-1]

    def open_buffers(self, num_bytes: int) -> None:
        for buffer in self.buffers:
            buffer.fill_(255)
        self.buffers = [torch.empty(num_bytes, dtype=torch.uint8) for _ in range(NUM_BUFFERS if num_bytes else 0)]
        self._under_way = {}

    def begin(self, buffer: int, host: Tensor) -> None:
        self.num_copies += 1
        self.buffers[buffer].fill_(255)  # bytes of 255 are NaN in every precision
        self._under_way[buffer] = host
        if not self._is_late:
            self._make(buffer)

    def arrived(self, buffer: int, num_bytes: int) -> Tensor:
        self._make(buffer)
        return self.buffers[buffer][:num_bytes]

    def _make(self, buffer: int) -> None:
        if (host := self._under_way.pop(buffer, None)) is not None:
            self.buffers[buffer][: len(host)] = host
