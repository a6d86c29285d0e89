"""The shape of a decode step: which slot is which row, and the index arithmetic between them.

The batch is rebuilt when rows or the set of decoding slots change; otherwise only positions advance. In deterministic
mode the batch always has ``max_running`` rows and attention always covers a whole class, so that every matrix product
has the same shape, whatever else runs.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from tailrace.engines.native.batcher import Batcher
from tailrace.engines.native.cache import KvCache, storage_index
from tailrace.engines.native.model import RowSpan, SpanInputs
from tailrace.engines.native.rows import RowTable

KEY_GRANULE = 16
"""Attention covers a multiple of this many positions, so that views of the cache can be reused for several steps."""


class DecodeBatch:
    def __init__(self, batcher: Batcher[RowTable], cache: KvCache, device: torch.device) -> None:
        self._batcher = batcher
        owners = [(index, batcher.rows.owners(index)) for index in range(len(cache.capacities))]
        owners = [(index, slots) for index, slots in owners if slots]
        self.slots: NDArray[np.int64] = np.array([slot for _, slots in owners for slot in slots], np.int64)
        """The slot of each row. Padding rows follow and have none."""
        self.num_rows = batcher.limits.max_running if batcher.deterministic else len(self.slots)
        self.is_live: NDArray[np.bool_] = batcher.is_decoding[self.slots]
        """Rows whose result is used. The other rows are still being prefilled; their result is ignored."""
        self.is_all_live = bool(self.is_live.all())
        self.has_live_rows = bool(self.is_live.any())
        self._blocks: list[_Block] = []
        start = 0
        for index, slots in owners:
            self._blocks.append(_Block(cache, index, start, start + len(slots), batcher.deterministic, device))
            start += len(slots)

    def inputs(self, positions: NDArray[np.int64], positions_N: torch.Tensor, dtype: torch.dtype) -> list[SpanInputs]:
        """The inputs of the next step. ``positions_N``: the same positions, on the device."""
        return [block.inputs(positions, positions_N, dtype) for block in self._blocks]


class _Block:
    """The rows of one length class."""

    def __init__(
        self, cache: KvCache, length_class: int, start: int, stop: int, is_whole: bool, device: torch.device
    ) -> None:
        self._tensor = cache[length_class]
        self._storage = cache.storage(length_class)
        self._start, self._stop = start, stop
        self._is_whole, self._device = is_whole, device
        self._write_base = storage_index(np.arange(stop - start), self._tensor)
        self._num_keys = 0

    def inputs(self, positions: NDArray[np.int64], positions_N: torch.Tensor, dtype: torch.dtype) -> SpanInputs:
        own = positions[self._start : self._stop]
        num_keys = self._keys_needed(int(own.max()) + 1)
        if num_keys != self._num_keys:
            self._num_keys = num_keys
            self._span = self._view(num_keys)
            self._key_positions = torch.arange(num_keys, device=self._device)
        is_hidden = self._key_positions > positions_N[self._start : self._stop, None]
        mask = torch.zeros(is_hidden.shape, device=self._device, dtype=dtype).masked_fill_(is_hidden, -torch.inf)
        write_index = torch.from_numpy((self._write_base + own[:, None]).ravel()).to(self._device)
        return SpanInputs(span=self._span, write_index=write_index, mask=mask[:, None, None])

    def _keys_needed(self, longest: int) -> int:
        capacity = int(self._tensor.shape[4])
        return capacity if self._is_whole else min(capacity, -(-longest // KEY_GRANULE) * KEY_GRANULE)

    def _view(self, num_keys: int) -> RowSpan:
        rows = self._tensor[:, :, : self._stop - self._start, :, :num_keys]
        keys, values = rows.unbind(1)
        return RowSpan(
            start=self._start, stop=self._stop, keys=keys.unbind(), values=values.unbind(), storage=self._storage
        )
