"""Measures the machine itself: how fast it copies memory, and how fast it multiplies matrices."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from tailrace.sizing.speed_bounds import MachineSpeed

_COPY_BYTES = {"cpu": 2**27, "cuda": 2**31}
_MATRIX = {"cpu": 1024, "cuda": 8192}
"""Rows and columns of the matrices."""
_REPEATS = 5


def measure_machine(device: torch.device, dtype: torch.dtype) -> MachineSpeed:
    """``dtype``: of the matrices. The fastest of several runs counts."""
    return MachineSpeed(bytes_per_s=_copied_per_s(device), flops=_multiplied_per_s(device, dtype))


def _copied_per_s(device: torch.device) -> float:
    source = torch.ones(_COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * len(source) / _fastest(lambda: target.copy_(source), device)


def _multiplied_per_s(device: torch.device, dtype: torch.dtype) -> float:
    size = _MATRIX[device.type]
    # Random numbers: a GPU draws less power for equal ones, and is faster than it would be with real weights.
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / _fastest(lambda: left @ right, device)


def _fastest(work: Callable[[], object], device: torch.device) -> float:
    work()
    seconds = []
    for _ in range(_REPEATS):
        settle(device)
        start = time.perf_counter()
        work()
        settle(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def settle(device: torch.device) -> None:
    """Wait until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
