"""The runner in plain torch, one token at a time: for the CPU, for deterministic mode, and to compare with."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from tailrace.devices.releasable_memory import StorageMemory
from tailrace.engines.native.architecture import Architecture
from tailrace.engines.native.batcher import Batcher
from tailrace.engines.native.cache import KvCache
from tailrace.engines.native.decode_batch import DecodeBatch
from tailrace.engines.native.model import Model
from tailrace.engines.native.parameters import Filling, allocate
from tailrace.engines.native.prefill import Prefiller, PrefillMeter
from tailrace.engines.native.randomness import uniforms
from tailrace.engines.native.rows import RowTable
from tailrace.engines.native.runner import NOTHING, Gained
from tailrace.engines.native.sampler import sample
from tailrace.engines.native.sequences import SlotTable
from tailrace.engines.native.step_plan import Plan


class PlainRunner:
    def __init__(
        self,
        architecture: Architecture,
        batcher: Batcher[RowTable],
        table: SlotTable,
        meter: PrefillMeter,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        limits = batcher.limits
        self._batcher, self._table = batcher, table
        self._device, self._dtype = device, dtype
        self._memory = StorageMemory(device)
        parameters = allocate(architecture, self._memory, dtype=dtype)
        self._filling = Filling(parameters, architecture)
        self._model = Model(architecture, parameters, max_length=limits.max_length)
        self._cache = KvCache(
            architecture,
            limits.capacities,
            max_rows=limits.max_running,
            kv_budget=limits.kv_budget,
            device=device,
            dtype=dtype,
        )
        self._prefiller = Prefiller(self._model, batcher, self._cache, device, meter)
        self._batch: DecodeBatch | None = None

    def fill(self, weights: Mapping[str, torch.Tensor]) -> None:
        self._filling.fill(weights)

    def carry_out(self, plan: Plan) -> None:
        """Move rows, prefill chunks and copy shared prompts, as the plan says."""
        self._cache.reserve(plan.num_rows)
        for move in plan.moves:
            self._cache.copy(move.source, move.target, move.count)
        if plan.chunks:
            self._prefiller.run(plan.chunks, self._table.tokens)
        for copy in plan.copies:
            self._cache.copy(copy.source, copy.target, copy.count)
        if plan.late_chunks:
            self._prefiller.run(plan.late_chunks, self._table.tokens)
        self._batch = DecodeBatch(self._batcher, self._cache, self._device)
        self._settings = self._table.settings.gather(self._batch.slots, self._batch.num_rows, self._device)

    def decode(self) -> Gained:
        """Compute one position of every ready slot."""
        batch = self._batch
        if batch is None or not batch.has_live_rows:
            return NOTHING
        slots, num_padding = batch.slots, batch.num_rows - len(batch.slots)
        positions = self._batcher.computed[slots]
        tokens = self._table.tokens[slots, positions].astype(np.int64)
        draws = uniforms(self._table.key[slots], positions + 1 - self._table.prompt_length[slots])
        if num_padding:
            tokens, positions = np.pad(tokens, (0, num_padding)), np.pad(positions, (0, num_padding))
            draws = np.pad(draws, (0, num_padding))
        positions_N = self._upload(positions)
        inputs = batch.inputs(positions, positions_N, self._dtype)
        logits = self._model.decode(self._upload(tokens), positions_N, inputs)
        slots = self._record(batch, *sample(logits, self._upload(draws), self._settings))
        return Gained(slots=slots, counts=np.ones_like(slots))

    def drain(self) -> Gained:
        return NOTHING

    def release(self) -> None:
        self._memory.release()
        self._cache.clear()
        self._batch = None

    def restore(self) -> None:
        """The KV cache grows again when rows are needed."""
        self._memory.restore()

    def _record(
        self, batch: DecodeBatch, tokens_N: torch.Tensor, logprobs_N: torch.Tensor, behaviour_N: torch.Tensor | None
    ) -> NDArray[np.int64]:
        """Append the sampled tokens. Slots that recompute known tokens keep the token they have."""
        batcher, table = self._batcher, self._table
        columns = [column.cpu().numpy()[: len(batch.slots)] for column in (tokens_N, logprobs_N)]
        columns.append(columns[1] if behaviour_N is None else behaviour_N.cpu().numpy()[: len(batch.slots)])
        slots = batch.slots
        is_taken = batcher.computed[slots] + 1 == batcher.length[slots]
        if not batch.is_all_live:
            batcher.computed[slots[batch.is_live]] += 1
            is_taken &= batch.is_live
        else:
            batcher.computed[slots] += 1
        if not is_taken.all():
            slots, columns = slots[is_taken], [column[is_taken] for column in columns]
        ends = batcher.length[slots]
        table.tokens[slots, ends], table.logprobs[slots, ends], table.behaviour_logprobs[slots, ends] = columns
        batcher.length[slots] = ends + 1
        return slots

    def _upload(self, array: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)
