"""Runs the chunks of a plan through the model: tokens in, keys and values in the cache.

First chunks are batched and padded to the longest. They attend only to themselves and need no mask, because padding
comes last and attention is causal. Later chunks also attend to what their row already holds; they are batched per
length class.
In deterministic mode every chunk runs alone, padded to one fixed size.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray

from tailrace.core.costs import PrefillWork
from tailrace.engines.native.batcher import Batcher
from tailrace.engines.native.cache import KvCache, storage_index
from tailrace.engines.native.model import Model, PastKeys, Write
from tailrace.engines.native.rows import RowTable
from tailrace.engines.native.step_plan import DETERMINISTIC_CHUNK, Chunk
from tailrace.store.segment import Tokens


@dataclass(slots=True)
class PrefillMeter:
    """Counts prefilled tokens and the time they took. The counts survive ``release``."""

    num_batches: int = 0
    num_tokens: int = 0
    seconds: float = 0.0

    def add(self, num_tokens: int, seconds: float) -> None:
        self.num_batches += 1
        self.num_tokens += num_tokens
        self.seconds += seconds

    @property
    def work(self) -> PrefillWork:
        return PrefillWork(num_batches=self.num_batches, num_tokens=self.num_tokens, seconds=self.seconds)


class Prefiller:
    def __init__(
        self, model: Model, batcher: Batcher[RowTable], cache: KvCache, device: torch.device, meter: PrefillMeter
    ) -> None:
        self._model, self._batcher, self._cache, self._device = model, batcher, cache, device
        self._meter = meter

    def run(self, chunks: Sequence[Chunk], tokens: Tokens) -> None:
        """Prefill these chunks. ``tokens``: the array of the slot table."""
        if self._batcher.deterministic:
            for chunk in chunks:
                self._run_batch([chunk], tokens, width=DETERMINISTIC_CHUNK, has_past=True)
            return
        first = [chunk for chunk in chunks if chunk.start == 0]
        if first:
            self._run_batch(first, tokens, width=max(chunk.count for chunk in first), has_past=False)
        later = sorted((chunk for chunk in chunks if chunk.start > 0), key=self._class_of)
        for _, same_class in groupby(later, key=self._class_of):
            batch = list(same_class)
            self._run_batch(batch, tokens, width=max(chunk.count for chunk in batch), has_past=True)

    def _class_of(self, chunk: Chunk) -> int:
        return self._batcher.rows.row(chunk.slot).length_class

    def _run_batch(self, chunks: Sequence[Chunk], tokens: Tokens, *, width: int, has_past: bool) -> None:
        began = time.perf_counter()
        self._compute(chunks, tokens, width=width, has_past=has_past)
        self._meter.add(len(chunks) * width, time.perf_counter() - began)

    def _compute(self, chunks: Sequence[Chunk], tokens: Tokens, *, width: int, has_past: bool) -> None:
        token_ids = np.zeros((len(chunks), width), np.int64)
        starts = np.array([chunk.start for chunk in chunks], np.int64)
        for row, chunk in enumerate(chunks):
            token_ids[row, : chunk.count] = tokens[chunk.slot, chunk.start : chunk.start + chunk.count]
        # Padding may lie beyond the longest position; its rotation does not matter, only that there is one.
        last_position = self._cache.capacities[-1] - 1
        positions = np.minimum(starts[:, None] + np.arange(width), last_position)
        past = self._past(chunks, positions) if has_past else None
        self._model.prefill(self._upload(token_ids), self._upload(positions), self._writes(chunks, width), past)

    def _past(self, chunks: Sequence[Chunk], positions: NDArray[np.int64]) -> PastKeys:
        rows = [self._batcher.rows.row(chunk.slot) for chunk in chunks]
        storage = self._cache[rows[0].length_class]
        num_keys = max(chunk.start + chunk.count for chunk in chunks)
        if self._batcher.deterministic:
            num_keys = storage.shape[4]
        is_visible = np.arange(num_keys) <= positions[:, None, :, None]
        return PastKeys(
            storage=storage,
            rows=self._upload(np.array([row.row for row in rows], np.int64)),
            num_keys=num_keys,
            mask_M1CL=self._upload(is_visible),
        )

    def _writes(self, chunks: Sequence[Chunk], width: int) -> list[Write]:
        order = sorted(range(len(chunks)), key=lambda index: self._class_of(chunks[index]))
        return [
            self._write(length_class, [(index, chunks[index]) for index in indices], width)
            for length_class, indices in groupby(order, key=lambda index: self._class_of(chunks[index]))
        ]

    def _write(self, length_class: int, batch: Sequence[tuple[int, Chunk]], width: int) -> Write:
        rows = np.array([self._batcher.rows.row(chunk.slot).row for _, chunk in batch], np.int64)
        bases = storage_index(rows, self._cache[length_class])
        index = [
            base + np.arange(c.start, c.start + c.count)[:, None] for base, (_, c) in zip(bases, batch, strict=True)
        ]
        taken = [np.arange(number * width, number * width + chunk.count) for number, chunk in batch]
        return Write(
            tokens=self._upload(np.concatenate(taken)),
            index=self._upload(np.concatenate(index).ravel()),
            storage=self._cache.storage(length_class),
        )

    def _upload(self, array: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)
