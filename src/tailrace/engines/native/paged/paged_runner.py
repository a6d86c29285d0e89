"""The runner with a paged KV cache that computes several tokens at a time, on a GPU as CUDA graphs.

``decode`` starts a replay and then reads the results of the one before, so the device always has work:

    host      start 1 |  start 2, read 1  |  start 3, read 2  | ...
    device         [ replay 1 ][ replay 2 ][ replay 3 ] ...

The device knows when a request ends (``slot_state.py``), so a request that ended in replay 1 does nothing in replay 2.
Everything else (seating, prefill, new pages) is queued between two replays and changes nothing that the running replay
reads. Results for a slot that has a new owner since are not taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tailrace.devices.releasable_memory import StorageMemory, releasable_memory
from tailrace.devices.upload import upload
from tailrace.engines.native.architecture import Architecture
from tailrace.engines.native.batcher import Batcher
from tailrace.engines.native.paged.kernel_set import QUERY_BLOCK, KernelSet, LayerPages, Places, QueryBlocks, RowBuffers
from tailrace.engines.native.paged.kv_pages import PageTable
from tailrace.engines.native.paged.paged_model import PagedModel
from tailrace.engines.native.paged.slot_state import SlotState
from tailrace.engines.native.paged.step_graphs import StepGraphs
from tailrace.engines.native.parameters import Filling, allocate
from tailrace.engines.native.rows import RowTransfer
from tailrace.engines.native.runner import NOTHING, Gained
from tailrace.engines.native.sampler import sample
from tailrace.engines.native.sequences import SlotTable
from tailrace.engines.native.step_plan import Chunk, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A replay that was started and not read yet."""

    slots: NDArray[np.int64]
    seats: NDArray[np.int64]
    results: torch.Tensor
    """Where the device copies its results to."""
    copied: torch.cuda.Event | None
    """Happens when the results are copied; None on a CPU, where they are copied at once."""


class PagedRunner:
    def __init__(
        self,
        shape: Architecture,
        batcher: Batcher[PageTable],
        table: SlotTable,
        kernels: KernelSet,
        *,
        device: torch.device,
        dtype: torch.dtype,
        num_steps: int,
        may_release: bool,
    ) -> None:
        limits, pages = batcher.limits, batcher.rows
        self._batcher, self._table, self._kernels = batcher, table, kernels
        self._device, self._num_steps = device, num_steps
        self._memory = releasable_memory(device) if may_release else StorageMemory(device)
        parameters = allocate(shape, self._memory, dtype=dtype)
        self._filling = Filling(parameters, shape)
        self._blocks = torch.zeros(pages.blocks.shape, device=device, dtype=torch.int32)
        sizes = (shape.num_layers, pages.num_pages, shape.num_kv_heads, pages.page_size, shape.head_dim)
        self._keys, self._values = (self._memory.empty(*sizes, dtype=dtype).zero_() for _ in range(2))
        pools = [
            LayerPages(keys=k, values=v, blocks=self._blocks) for k, v in zip(self._keys, self._values, strict=True)
        ]
        self._model = PagedModel(shape, parameters, pools, kernels, max_length=limits.max_length)
        self._state = SlotState(limits.max_running, device)
        self._rows = RowBuffers.allocate(limits.max_running, num_steps, device)
        self._graphs = StepGraphs(max_rows=limits.max_running, device=device)
        self._row_slots: NDArray[np.int64] = np.empty(0, np.int64)
        self._launched: Launch | None = None
        self._results = [self._host_buffer() for _ in range(2)]

    def fill(self, weights: Mapping[str, torch.Tensor]) -> None:
        self._filling.fill(weights)

    def release(self) -> None:
        """Release weights and KV cache. Graphs and their memory pool stay; if addresses will change, both are
        dropped."""
        self.drain()
        self._memory.release()
        if not self._memory.keeps_addresses:
            self._graphs.clear()

    def restore(self) -> None:
        self._memory.restore()
        # Restored memory may hold NaN. Rows of requests read only positions that were written. Empty rows read nothing
        # in Triton kernels, but position 0 in the reference kernels. That changes no result. Zeros cost milliseconds
        # and are as in a new engine.
        for pool in (self._keys, self._values):
            pool.zero_()

    # Between two replays

    def carry_out(self, plan: Plan) -> None:
        self._write_blocks()
        if plan.admitted:
            self._write_slots([ticket.slot for ticket in plan.admitted])
        self._prefill(plan.chunks)
        self._copy_pages(plan.copies)
        self._prefill(plan.late_chunks)

    def _write_blocks(self) -> None:
        changed = self._batcher.rows.take_changed()
        if len(changed):
            rows = upload(self._batcher.rows.blocks[changed], self._device)
            self._blocks.index_copy_(0, upload(changed, self._device), rows)

    def _write_slots(self, seated: Sequence[int]) -> None:
        slots = np.array(seated, np.int64)
        stops = [self._table.stop_ids[slot] for slot in seated]
        self._state.write(slots, self._table, self._batcher.length[slots], stops)

    def _copy_pages(self, copies: Sequence[RowTransfer]) -> None:
        """Copy whole pages: positions behind ``count`` are written before they are read."""
        if copies:
            source, target = (
                upload(np.array([row.row for row in rows], np.int64), self._device)
                for rows in zip(*((copy.source, copy.target) for copy in copies), strict=True)
            )
            for pool in (self._keys, self._values):
                pool.index_copy_(1, target, pool.index_select(1, source))

    def _prefill(self, chunks: Sequence[Chunk]) -> None:
        if not chunks:
            return
        tokens = [self._table.tokens[c.slot, c.start : c.start + c.count] for c in chunks]
        positions = np.concatenate([np.arange(c.start, c.start + c.count) for c in chunks])
        slots = np.repeat([c.slot for c in chunks], [c.count for c in chunks])
        places = Places(
            slots=upload(slots.astype(np.int32), self._device),
            positions=upload(positions.astype(np.int32), self._device),
        )
        token_ids = upload(np.concatenate(tokens).astype(np.int64), self._device)
        self._model.prefill(token_ids, places, self._query_blocks(chunks))

    def _query_blocks(self, chunks: Sequence[Chunk]) -> QueryBlocks:
        entries, first = [], 0
        for c in chunks:
            for at in range(0, c.count, QUERY_BLOCK):
                entries.append((first + at, min(QUERY_BLOCK, c.count - at), c.start + at, c.slot))
            first += c.count
        columns = upload(np.array(entries, np.int32).T, self._device)
        return QueryBlocks(first_token=columns[0], num_tokens=columns[1], first_position=columns[2], slot=columns[3])

    # Decoding

    def decode(self) -> Gained:
        before, self._launched = self._launched, None
        slots = self._slots_to_run(before)
        if len(slots):
            self._launched = self._launch(slots, self._free_buffer(before))
        return NOTHING if before is None else self._read(before)

    def drain(self) -> Gained:
        before, self._launched = self._launched, None
        return NOTHING if before is None else self._read(before)

    def _slots_to_run(self, launched: Launch | None) -> NDArray[np.int64]:
        """Slots that decode, without those that are certain to reach their end in the replay that runs."""
        batcher = self._batcher
        ahead = np.zeros(batcher.limits.max_running, np.int64)
        if launched is not None:
            ahead[launched.slots[batcher.seat[launched.slots] == launched.seats]] = self._num_steps
        is_wanted = batcher.is_decoding & (batcher.length + ahead < self._table.end)
        return np.flatnonzero(is_wanted)

    def _free_buffer(self, launched: Launch | None) -> torch.Tensor:
        """The buffer for results that the replay that runs does not use."""
        return self._results[1 if launched is not None and launched.results is self._results[0] else 0]

    def _launch(self, slots: NDArray[np.int64], buffer: torch.Tensor) -> Launch:
        size = self._graphs.size_for(len(slots))
        is_truncated = bool(self._table.settings.is_truncated[slots].any())
        if not self._graphs.has(size, is_truncated):
            self._rows.slots.fill_(-1)
            self._row_slots = np.empty(0, np.int64)
            self._graphs.capture(self._steps, size, is_truncated)
        if not np.array_equal(slots, self._row_slots):
            padded = np.full(self._rows.slots.shape[0], -1, np.int32)
            padded[: len(slots)] = slots
            self._rows.slots.copy_(upload(padded, self._device))
            self._row_slots = slots
        self._graphs.run(self._steps, size, is_truncated)
        return self._start_copy(slots, buffer)

    def _start_copy(self, slots: NDArray[np.int64], buffer: torch.Tensor) -> Launch:
        buffer.copy_(self._rows.results, non_blocking=True)
        event = None
        if self._device.type == "cuda":
            event = torch.cuda.Event()
            event.record()
        return Launch(slots=slots, seats=self._batcher.seat[slots], results=buffer, copied=event)

    def _steps(self, num_rows: int, is_truncated: bool) -> None:
        rows, state, kernels = self._rows, self._state, self._kernels
        places = Places(slots=rows.slots[:num_rows], positions=rows.positions[:num_rows])
        for step in range(self._num_steps):
            kernels.prepare(rows, state, num_rows, is_first=step == 0)
            logits = self._model.decode(rows.tokens[:num_rows], places)
            if is_truncated:
                self._sample_truncated(logits)
            else:
                kernels.pick(logits, rows, state)
            kernels.advance(rows, state, num_rows, step=step, num_steps=self._num_steps, is_truncated=is_truncated)

    def _sample_truncated(self, logits: torch.Tensor) -> None:
        rows, num_rows = self._rows, logits.shape[0]
        settings = self._state.sampling(rows.slots[:num_rows])
        tokens, logprobs, full = sample(logits, rows.uniforms[:num_rows], settings)
        assert full is not None
        rows.tokens[:num_rows].copy_(tokens)
        rows.logprobs[:num_rows].copy_(logprobs)
        rows.behaviour_logprobs[:num_rows].copy_(full)

    # Results

    def _read(self, launch: Launch) -> Gained:
        """Wait for a replay and append its tokens to the slot table."""
        if launch.copied is not None:
            launch.copied.synchronize()
        batcher, table, steps = self._batcher, self._table, self._num_steps
        results = launch.results.numpy()[:, : len(launch.slots)]
        counts = results[3 * steps].astype(np.int64)
        is_owner = batcher.is_decoding[launch.slots] & (batcher.seat[launch.slots] == launch.seats)
        taken = is_owner & (counts > 0)
        slots, counts, results = launch.slots[taken], counts[taken], results[:, taken]
        starts = batcher.length[slots]
        for step in range(int(counts.max(initial=0))):
            has_token = counts > step
            at = slots[has_token], starts[has_token] + step
            table.tokens[at] = results[step, has_token]
            table.logprobs[at] = results[steps + step, has_token].view(np.float32)
            table.behaviour_logprobs[at] = results[2 * steps + step, has_token].view(np.float32)
        batcher.length[slots] = starts + counts
        batcher.computed[slots] += counts
        return Gained(slots=slots, counts=counts)

    def _host_buffer(self) -> torch.Tensor:
        shape = self._rows.results.shape
        return torch.zeros(shape, dtype=torch.int32, pin_memory=self._device.type == "cuda")
