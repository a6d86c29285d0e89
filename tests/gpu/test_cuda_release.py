"""Release and restore on CUDA: physical memory goes and comes back, addresses and graphs stay."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from engines.native_engines import make_paged, small_model  # noqa: F401
from engines.rollouts import generate, make_request
from tailrace.core.ids import Version
from tailrace.devices import cuda_driver
from tailrace.devices.releasable_memory import MappedMemory, releasable_memory
from tailrace.engines.native.checkpoint import CheckpointTensors
from tailrace.engines.native.engine import NativeEngine
from tailrace.engines.native.paged.step_graphs import StepGraphs

CUDA = torch.device("cuda")
MIB = 2**20
KV_TOKENS = 4 * MIB
"""Tokens of the KV cache: about 2 GiB of the small model's keys and values."""


@pytest.fixture
def device() -> str:
    return "cuda"


@pytest.fixture(autouse=True)
def free_of_earlier_tests() -> Iterator[None]:
    yield
    gc.collect()
    torch.cuda.empty_cache()


def free_bytes() -> int:
    torch.cuda.synchronize()
    return int(torch.cuda.mem_get_info()[0])


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Sizes of the graphs that were captured."""
    found: list[tuple[int, bool]] = []
    capture = StepGraphs.capture

    def count(self: StepGraphs, steps: object, num_rows: int, is_truncated: bool) -> None:
        found.append((num_rows, is_truncated))
        capture(self, steps, num_rows, is_truncated)  # type: ignore[arg-type]

    monkeypatch.setattr(StepGraphs, "capture", count)
    return found


def test_tensors_keep_their_addresses_while_physical_memory_goes_and_comes() -> None:
    memory = releasable_memory(CUDA)
    assert isinstance(memory, MappedMemory)
    before = free_bytes()
    tensors = [memory.empty(n, 1024, 1024, dtype=torch.float32) for n in (64, 3, 128)]
    addresses = [tensor.data_ptr() for tensor in tensors]
    taken = before - free_bytes()
    assert taken >= 195 * 4 * MIB
    for value in range(3):
        for tensor in tensors:
            tensor.fill_(value)
        assert all((tensor == value).all() for tensor in tensors)
        torch.cuda.empty_cache()
        held = free_bytes()
        memory.release()
        assert free_bytes() - held >= 195 * 4 * MIB
        memory.restore()
        assert abs(free_bytes() - held) <= 8 * MIB
    assert [tensor.data_ptr() for tensor in tensors] == addresses


def test_a_tensor_over_foreign_memory_has_its_address_and_is_no_copy() -> None:
    address = cuda_driver.allocate(4096, CUDA)
    try:
        tensor = cuda_driver.bytes_at(address, 4096, CUDA)
        assert tensor.data_ptr() == address
        tensor.fill_(7)
        assert cuda_driver.bytes_at(address + 100, 8, CUDA).tolist() == [7] * 8
    finally:
        torch.cuda.synchronize()
        cuda_driver.free(address, CUDA)


def test_memory_that_does_not_fit_is_an_out_of_memory_error_and_takes_nothing() -> None:
    memory = MappedMemory(CUDA)
    tensor = memory.empty(1000, dtype=torch.float32).fill_(3)
    before = free_bytes()
    with pytest.raises(torch.OutOfMemoryError):
        memory.empty(torch.cuda.mem_get_info()[1], dtype=torch.uint8)
    assert free_bytes() >= before
    assert (tensor == 3).all()


def test_deleted_memory_is_free() -> None:
    before = free_bytes()
    memory = MappedMemory(CUDA)
    memory.empty(1024 * MIB, dtype=torch.uint8)
    assert before - free_bytes() >= 1024 * MIB
    del memory
    gc.collect()
    assert before - free_bytes() <= 8 * MIB


def test_a_released_engine_gives_its_memory_back_and_goes_on_with_its_graphs(
    make_paged: Callable[..., NativeEngine],  # noqa: F811
    small_model: Path,  # noqa: F811
    captures: list[tuple[int, bool]],
) -> None:
    engine = make_paged(kv_tokens=KV_TOKENS)
    weights = {name: tensor.cuda() for name, tensor in CheckpointTensors(small_model).items()}
    requests = [make_request(index, member, budget=40) for index in range(4) for member in range(4)]
    before = {name: found.tokens.tolist() for name, found in generate(engine, requests).items()}
    num_captured = len(captures)
    assert num_captured
    for version in range(1, 4):
        torch.cuda.empty_cache()
        held = free_bytes()
        start = time.perf_counter()
        engine.release()
        released = time.perf_counter()
        freed = free_bytes() - held
        assert freed >= 1024 * MIB
        resumed = time.perf_counter()
        engine.restore()
        engine.pull([weights], Version(version))
        torch.cuda.synchronize()
        end = time.perf_counter()
        assert abs(free_bytes() - held) <= 64 * MIB
        again = {name: found.tokens.tolist() for name, found in generate(engine, requests).items()}
        assert again == before
        print(
            f"{freed / MIB:,.0f} MiB: release {1e3 * (released - start):.1f} ms,"
            f" restore and pull {1e3 * (end - resumed):.1f} ms"
        )
    assert len(captures) == num_captured


def test_memory_is_released_while_a_replay_still_runs(
    make_paged: Callable[..., NativeEngine],  # noqa: F811
    small_model: Path,  # noqa: F811
) -> None:
    engine = make_paged()
    requests = [make_request(index, budget=100) for index in range(8)]
    before = {name: found.tokens.tolist() for name, found in generate(engine, requests).items()}
    for version in range(1, 4):
        engine.submit(requests)
        for _ in range(3):
            engine.step()
        engine.abort([request.response_id for request in requests])
        engine.release()
        engine.restore()
        engine.pull([CheckpointTensors(small_model)], Version(version))
        again = {name: found.tokens.tolist() for name, found in generate(engine, requests).items()}
        assert again == before


def test_an_engine_without_fixed_addresses_captures_its_graphs_again(
    make_paged: Callable[..., NativeEngine],  # noqa: F811
    small_model: Path,  # noqa: F811
    captures: list[tuple[int, bool]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuda_driver, "can_map", lambda device: False)
    engine = make_paged()
    before = generate(engine, [make_request()])
    engine.release()
    engine.restore()
    engine.pull([CheckpointTensors(small_model)], Version(1))
    after = generate(engine, [make_request()])
    assert [found.tokens.tolist() for found in after.values()] == [found.tokens.tolist() for found in before.values()]
    assert len(captures) == 2
