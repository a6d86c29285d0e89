"""Keys and values of running sequences: one tensor per length class, one row per sequence.

    class tensor [layers, 2 (key, value), rows, kv_heads, capacity, head_dim]

``RowTable`` decides which sequence owns which row; this file holds and moves the contents. Tensors grow by doubling and
are freed if together they would be much larger than the KV budget. Rows start as zeros, because attention multiplies
masked positions by zero and uninitialised memory may hold NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from tailrace.engines.native.architecture import Architecture
from tailrace.engines.native.rows import Row

SMALLEST_ALLOCATION = 8


class KvCache:
    def __init__(
        self,
        shape: Architecture,
        capacities: Sequence[int],
        *,
        max_rows: int,
        kv_budget: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.capacities = tuple(capacities)
        self._shape = shape
        self._max_rows = max_rows
        self._kv_budget = kv_budget
        self._device, self._dtype = device, dtype
        self._tensors: list[torch.Tensor] = [self._allocate(index, 0) for index in range(len(self.capacities))]
        self._storages: list[list[torch.Tensor]] = [_flatten(tensor) for tensor in self._tensors]

    def __getitem__(self, length_class: int) -> torch.Tensor:
        return self._tensors[length_class]

    def storage(self, length_class: int) -> list[torch.Tensor]:
        """For each layer, the class tensor as ``[positions, head_dim]``, for writing."""
        return self._storages[length_class]

    def reserve(self, used_rows: Sequence[int]) -> bool:
        """Make room for this many rows in each class. Returns whether a tensor was replaced."""
        growing = [index for index, used in enumerate(used_rows) if used > self._tensors[index].shape[2]]
        if not growing:
            return False
        sizes = [tensor.shape[2] for tensor in self._tensors]
        for index in growing:
            sizes[index] = min(self._max_rows, max(SMALLEST_ALLOCATION, 2 * used_rows[index]))
        if sum(size * capacity for size, capacity in zip(sizes, self.capacities, strict=True)) > 2 * self._kv_budget:
            sizes = list(used_rows)
        for index, size in enumerate(sizes):
            self._resize(index, size)
        return True

    def clear(self) -> None:
        """Free all rows."""
        for index in range(len(self.capacities)):
            self._resize(index, 0)

    def copy(self, source: Row, target: Row, count: int) -> None:
        """Copy the first ``count`` positions of one row to another."""
        contents = self._tensors[source.length_class][:, :, source.row, :, :count]
        self._tensors[target.length_class][:, :, target.row, :, :count] = contents

    def _allocate(self, length_class: int, rows: int) -> torch.Tensor:
        shape = self._shape
        sizes = (shape.num_layers, 2, rows, shape.num_kv_heads, self.capacities[length_class], shape.head_dim)
        return torch.zeros(sizes, device=self._device, dtype=self._dtype)

    def _resize(self, length_class: int, rows: int) -> None:
        old = self._tensors[length_class]
        if rows == old.shape[2]:
            return
        new = self._allocate(length_class, rows)
        kept = min(rows, old.shape[2])
        new[:, :, :kept] = old[:, :, :kept]
        self._tensors[length_class] = new
        self._storages[length_class] = _flatten(new)


def _flatten(tensor: torch.Tensor) -> list[torch.Tensor]:
    return [layer.view(-1, tensor.shape[-1]) for layer in tensor]


def storage_index(rows: NDArray[np.int64], tensor: torch.Tensor) -> NDArray[np.int64]:
    """``[rows, 2 * kv_heads]``: where position 0 of each row's keys and values lies in the class's storage."""
    _, _, allocated, kv_heads, capacity, _ = tensor.shape
    first_rows = np.arange(2, dtype=np.int64)[:, None] * allocated
    heads = (first_rows + rows[:, None, None]) * kv_heads + np.arange(kv_heads, dtype=np.int64)
    index: NDArray[np.int64] = heads.reshape(len(rows), -1) * capacity
    return index
