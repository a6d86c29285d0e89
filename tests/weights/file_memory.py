"""Device memory for tests without a device: each block is a file that other processes can map."""

from __future__ import annotations

import mmap
from itertools import count
from pathlib import Path

import torch
from torch import Tensor


class FileMemory:
    identity = "files"

    def __init__(self, directory: Path, identity: str = identity) -> None:
        self._directory, self.identity = directory, identity
        self._allocated: dict[int, Path] = {}
        self.num_open = 0

    def allocate(self, num_bytes: int) -> Tensor:
        path = next(p for n in count() if not (p := self._directory / f"block-{n}").exists())
        path.write_bytes(bytes(num_bytes))
        block = self._map(path)
        self._allocated[block.data_ptr()] = path
        return block

    def free(self, block: Tensor) -> None:
        self._allocated.pop(block.data_ptr()).unlink()

    def export(self, block: Tensor) -> bytes:
        return str(self._allocated[block.data_ptr()]).encode()

    def open(self, handle: bytes, num_bytes: int) -> Tensor:
        block = self._map(Path(handle.decode()))
        assert len(block) == num_bytes
        self.num_open += 1
        return block

    def close(self, block: Tensor) -> None:
        self.num_open -= 1

    def _map(self, path: Path) -> Tensor:
        with path.open("r+b") as file:
            return torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=torch.uint8)
