"""Memory that is given back and taken again: on a CPU, and at fixed addresses over a driver that only keeps books.

``tests/gpu`` tests the real driver.
"""

from __future__ import annotations

import gc

import pytest
import torch

from tailrace.devices import cuda_driver
from tailrace.devices.releasable_memory import MappedMemory, StorageMemory, releasable_memory

CPU = torch.device("cpu")
UNIT = 4096
TOTAL = 10 * UNIT


def test_on_a_cpu_tensors_and_their_views_lose_their_memory_and_get_it_back() -> None:
    memory = releasable_memory(CPU)
    assert isinstance(memory, StorageMemory)
    tensor = memory.empty(3, 5, dtype=torch.float32)
    view = tensor.t()[1]
    memory.release()
    assert tensor.untyped_storage().nbytes() == 0
    memory.restore()
    tensor.fill_(7)
    assert tensor.untyped_storage().nbytes() == 60
    assert view.tolist() == [7.0, 7.0, 7.0]


class Books:
    """A driver that keeps books: which addresses have memory. The addresses are those of a tensor on the CPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        space = torch.zeros(TOTAL + UNIT, dtype=torch.uint8)
        start = -space.data_ptr() % UNIT  # a driver reserves whole units
        self.space = space[start : start + TOTAL]
        self.mapped: dict[int, tuple[int, int]] = {}
        self.num_handles = self.num_waits = self.num_emptied = 0
        self.is_reserved = False
        self.capacity = TOTAL
        for name in ("reserve", "free_reserved", "map_memory", "unmap_memory", "bytes_at"):
            monkeypatch.setattr(cuda_driver, name, getattr(self, name))
        monkeypatch.setattr(cuda_driver, "granularity", lambda device: UNIT)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (TOTAL - 100, TOTAL - 100))
        monkeypatch.setattr(torch.cuda, "synchronize", self.wait)
        monkeypatch.setattr(torch.cuda, "empty_cache", self.empty_cache)

    @property
    def used(self) -> int:
        return sum(size for size, _ in self.mapped.values())

    def wait(self, device: torch.device) -> None:
        self.num_waits += 1

    def empty_cache(self) -> None:
        self.num_emptied += 1
        self.capacity = TOTAL

    def reserve(self, num_bytes: int, device: torch.device) -> int:
        assert num_bytes == TOTAL
        assert not self.is_reserved
        self.is_reserved = True
        return self.space.data_ptr()

    def free_reserved(self, address: int, num_bytes: int, device: torch.device) -> None:
        assert (address, num_bytes) == (self.space.data_ptr(), TOTAL)
        assert not self.mapped
        self.is_reserved = False

    def map_memory(self, address: int, num_bytes: int, device: torch.device) -> int:
        assert num_bytes % UNIT == 0
        assert (address - self.space.data_ptr()) % UNIT == 0
        assert all(address >= at + size or at >= address + num_bytes for at, (size, _) in self.mapped.items())
        if self.used + num_bytes > self.capacity:
            raise torch.OutOfMemoryError("cuMemCreate: out of memory")
        self.num_handles += 1
        self.mapped[address] = (num_bytes, self.num_handles)
        return self.num_handles

    def unmap_memory(self, address: int, num_bytes: int, handle: int, device: torch.device) -> None:
        assert self.num_waits, "work may still use the memory"
        assert self.mapped.pop(address) == (num_bytes, handle)

    def bytes_at(self, address: int, num_bytes: int, device: torch.device) -> torch.Tensor:
        start = address - self.space.data_ptr()
        assert any(at <= address and address + num_bytes <= at + size for at, size in self.ranges())
        return self.space[start : start + num_bytes]

    def ranges(self) -> list[tuple[int, int]]:
        """Neighbouring pieces joined."""
        joined: list[tuple[int, int]] = []
        for at, (size, _) in sorted(self.mapped.items()):
            if joined and sum(joined[-1]) == at:
                joined[-1] = (joined[-1][0], joined[-1][1] + size)
            else:
                joined.append((at, size))
        return joined


@pytest.fixture
def books(monkeypatch: pytest.MonkeyPatch) -> Books:
    return Books(monkeypatch)


def test_tensors_lie_side_by_side_and_share_whole_units_of_memory(books: Books) -> None:
    memory = MappedMemory(CPU)
    shapes = [(10,), (3, 100), (2000,), (1, 1), (64, 64)]
    tensors = [memory.empty(*shape, dtype=torch.int16).fill_(n) for n, shape in enumerate(shapes)]
    assert [tuple(tensor.shape) for tensor in tensors] == shapes
    assert all((tensor == n).all() for n, tensor in enumerate(tensors))
    assert all((tensor.data_ptr() - books.space.data_ptr()) % 512 == 0 for tensor in tensors)
    assert books.used == 4 * UNIT


def test_released_memory_comes_back_behind_the_same_addresses(books: Books) -> None:
    memory = MappedMemory(CPU)
    tensors = [memory.empty(1500, dtype=torch.float32) for _ in range(3)]
    before, addresses = books.ranges(), [tensor.data_ptr() for tensor in tensors]
    for _ in range(3):
        memory.release()
        assert books.used == 0
        memory.restore()
        assert books.ranges() == before
    assert [tensor.data_ptr() for tensor in tensors] == addresses
    memory.restore()  # it is there already
    assert books.ranges() == before


def test_too_little_memory_is_an_error_that_leaves_everything_as_it_was(books: Books) -> None:
    memory = MappedMemory(CPU)
    memory.empty(UNIT, dtype=torch.uint8)
    with pytest.raises(torch.OutOfMemoryError):
        memory.empty(TOTAL, dtype=torch.uint8)
    assert books.used == UNIT
    assert memory.empty(UNIT, dtype=torch.uint8).data_ptr() == books.space.data_ptr() + UNIT


def test_blocks_that_torch_keeps_for_nobody_are_freed_before_memory_is_too_little(books: Books) -> None:
    memory = MappedMemory(CPU)
    memory.empty(3 * UNIT, dtype=torch.uint8)
    memory.release()
    books.capacity = UNIT
    memory.restore()
    assert books.num_emptied == 1
    assert books.used == 3 * UNIT


def test_deleted_memory_is_free(books: Books) -> None:
    memory = MappedMemory(CPU)
    memory.empty(UNIT, dtype=torch.uint8)
    assert books.is_reserved
    del memory
    gc.collect()
    assert books.used == 0
    assert not books.is_reserved
