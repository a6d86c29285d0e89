"""The shape of a decode step: which slot is which row, and the index arithmetic between them.

Rebuilt when rows or the set of decoding slots change; between changes only positions move on. In deterministic mode
the batch always has ``max_running`` rows and attention always covers a whole class, so that every matrix product a
sequence takes part in has the same shape whoever else is running.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from tailrace.engines.contract import Sampling
from tailrace.engines.native.batcher import Batcher
from tailrace.engines.native.cache import KvCache
from tailrace.engines.native.model import Span
from tailrace.engines.native.sampler import gather_settings

KEY_GRANULE = 16
"""Attention covers a multiple of so many positions, so that views of the cache last for several steps."""


class DecodeBatch:
    def __init__(
        self, batcher: Batcher, cache: KvCache, samplings: Mapping[int, Sampling], device: torch.device
    ) -> None:
        self._batcher, self._cache, self._device = batcher, cache, device
        classes = range(len(cache.capacities))
        owners = [batcher.rows.owners(index) for index in classes]
        self._occupied = [index for index in classes if owners[index]]
        slots = [slot for index in self._occupied for slot in owners[index]]
        self.slots: NDArray[np.int64] = np.array(slots, np.int64)
        """Slot of each row; padding rows come after them."""
        self.num_rows = batcher.limits.max_running if batcher.deterministic else len(slots)
        self.is_live: NDArray[np.bool_] = batcher.is_decoding[self.slots]
        self.is_all_live = bool(self.is_live.all())
        self.has_live_rows = bool(self.is_live.any())
        self._bounds = np.cumsum([0, *(len(owners[index]) for index in self._occupied)]).tolist()
        self._write_bases = [self._write_base(index, len(owners[index])) for index in self._occupied]
        self._num_keys: list[int] = [0] * len(self._occupied)
        self._spans: list[Span] = []
        padding = [Sampling()] * (self.num_rows - len(slots))
        self.settings = gather_settings([*(samplings[slot] for slot in slots), *padding], device)

    def spans(self, positions: NDArray[np.int64]) -> Sequence[Span]:
        """The length classes' rows with as many key positions as the longest sequence of each needs."""
        num_keys = [
            self._keys_needed(index, int(positions[start:stop].max()) + 1)
            for index, start, stop in zip(self._occupied, self._bounds, self._bounds[1:], strict=False)
        ]
        if num_keys != self._num_keys:
            self._num_keys = num_keys
            self._spans = [self._span(order) for order in range(len(self._occupied))]
        return self._spans

    def write_indices(self, positions: NDArray[np.int64]) -> list[torch.Tensor]:
        return [
            torch.from_numpy((base + positions[start:stop, None]).ravel()).to(self._device)
            for base, start, stop in zip(self._write_bases, self._bounds, self._bounds[1:], strict=False)
        ]

    def masks(self, positions_N: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
        """Per span ``[rows, 1, 1, L]``: 0 where a row may look, -inf elsewhere."""
        masks = []
        for num_keys, start, stop in zip(self._num_keys, self._bounds, self._bounds[1:], strict=False):
            is_hidden = torch.arange(num_keys, device=self._device) > positions_N[start:stop, None]
            mask = torch.zeros(is_hidden.shape, device=self._device, dtype=dtype).masked_fill_(is_hidden, -torch.inf)
            masks.append(mask[:, None, None])
        return masks

    def _keys_needed(self, length_class: int, longest: int) -> int:
        capacity = self._cache.capacities[length_class]
        return capacity if self._batcher.deterministic else min(capacity, -(-longest // KEY_GRANULE) * KEY_GRANULE)

    def _write_base(self, length_class: int, num_rows: int) -> NDArray[np.int64]:
        _, _, allocated, kv_heads, capacity, _ = self._cache[length_class].shape
        return storage_index(np.arange(num_rows), allocated, kv_heads, capacity)

    def _span(self, order: int) -> Span:
        tensor = self._cache[self._occupied[order]]
        start, stop = self._bounds[order], self._bounds[order + 1]
        rows = tensor[:, :, : stop - start, :, : self._num_keys[order]]
        return Span(
            start=start,
            stop=stop,
            keys=[layer[0] for layer in rows],
            values=[layer[1] for layer in rows],
            storage=flat_storage(tensor),
        )


def storage_index(rows: NDArray[np.int64], allocated: int, kv_heads: int, capacity: int) -> NDArray[np.int64]:
    """``[rows, 2 * kv_heads]``: where position 0 of each row's keys and values lies in a class's flat storage."""
    first_rows = np.arange(2, dtype=np.int64)[:, None] * allocated
    heads = (first_rows + rows[:, None, None]) * kv_heads + np.arange(kv_heads, dtype=np.int64)
    index: NDArray[np.int64] = heads.reshape(len(rows), -1) * capacity
    return index


def flat_storage(tensor: torch.Tensor) -> list[torch.Tensor]:
    return [layer.view(-1, tensor.shape[-1]) for layer in tensor]
