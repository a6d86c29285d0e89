"""Decides which requests run, in which slot, and what must be computed first. No tensors, no clock.

A ticket (a request) waits, gets a slot and room in the KV cache, is prefilled, decodes one or several tokens in each
step, and leaves. The room is one row (``RowTable``) or several pages (``PageTable``). Promises:

* first come, first served: every running request arrived before every waiting one;
* the KV budget is never exceeded. If a sequence must grow beyond it, the sequence that started last is preempted: its
  KV is freed, it waits at the head of the queue and is computed again. Preemptions are counted;
* at most ``prefill_chunk`` tokens are prefilled in one plan, but always at least one chunk. Padding counts too; packed
  chunks have none;
* a prompt is prefilled once for the members of a group that are resident together. The others copy its KV (rows), or
  share its full pages and copy the one that is partly filled (pages);
* the last known token of a sequence is never prefilled: it goes through decode, which samples from it.

In ``deterministic`` mode chunks have one fixed size and hold one sequence each, and only prompts are prefilled:
response tokens that must be computed again go through decode one by one, as they did the first time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tailrace.engines.native.limits import EngineLimits
from tailrace.engines.native.rows import KvTable, RowMove, RowTransfer
from tailrace.engines.native.step_plan import DETERMINISTIC_CHUNK, UNCHANGED, Chunk, Plan, Preemption, Ticket

Table = TypeVar("Table", bound=KvTable)


class Batcher(Generic[Table]):
    """``rows`` is where sequences are kept: a ``RowTable`` or a ``PageTable``.

    ``lookahead``: number of positions that a sequence may be beyond ``computed`` before the next plan. No sequence
    advances beyond its end. ``is_packed``: chunks of one plan are computed side by side, without padding.
    """

    def __init__(
        self,
        limits: EngineLimits,
        rows: Table,
        *,
        deterministic: bool = False,
        kv_budget: int | None = None,
        lookahead: int = 1,
        is_packed: bool = False,
    ) -> None:
        self.limits = limits
        self.kv_budget = limits.kv_budget if kv_budget is None else kv_budget
        self.deterministic = deterministic
        self.rows: Table = rows
        self._lookahead, self._is_packed = lookahead, is_packed
        self.num_preemptions = 0
        self.num_prefilled_tokens = 0
        """Tokens prefilled since the start, without padding."""
        self.computed: NDArray[np.int64] = np.zeros(limits.max_running, np.int64)
        """For each slot: number of positions whose KV is stored."""
        self.length: NDArray[np.int64] = np.zeros(limits.max_running, np.int64)
        """For each slot: number of known tokens (prompt and response)."""
        self.is_decoding: NDArray[np.bool_] = np.zeros(limits.max_running, np.bool_)
        self.capacity: NDArray[np.int64] = np.zeros(limits.max_running, np.int64)
        self.seat: NDArray[np.int64] = np.zeros(limits.max_running, np.int64)
        """For each slot: how often it has been given to a ticket. Results for an earlier ticket are not taken."""
        self._end: NDArray[np.int64] = np.zeros(limits.max_running, np.int64)
        self.waiting: deque[Ticket] = deque()
        self.running: dict[int, Ticket] = {}
        """Running tickets by slot, the oldest first."""
        self._free_slots = list(range(limits.max_running))
        self._prefilling: dict[int, int] = {}
        """From slot to the number of positions to prefill, in order of admission."""
        self._residents: dict[Hashable, dict[int, None]] = {}
        self._is_changed = False

    def enqueue(self, ticket: Ticket) -> None:
        self.waiting.append(ticket)

    def leave(self, ticket: Ticket) -> None:
        """Remove a ticket that finished, was interrupted or was aborted."""
        if ticket.slot >= 0:
            self._vacate(ticket)
        else:
            self.waiting.remove(ticket)

    def plan(self) -> Plan:
        preempted, grown = self._grow()
        admitted = [] if preempted else self._admit()
        if not (self._is_changed or self._prefilling):
            return UNCHANGED
        num_rows = self.rows.extents
        moves = [*grown, *self._transfers(self.rows.compact())]
        chunks, copies, late_chunks = self._prefill()
        self.num_prefilled_tokens += sum(chunk.count for chunk in (*chunks, *late_chunks))
        self._is_changed = False
        return Plan(
            preempted=tuple(preempted),
            num_rows=tuple(num_rows),
            moves=tuple(moves),
            admitted=tuple(admitted),
            chunks=tuple(chunks),
            copies=tuple(copies),
            late_chunks=tuple(late_chunks),
            is_changed=True,
        )

    # Growth and preemption

    def _grow(self) -> tuple[list[Preemption], list[RowTransfer]]:
        """Give every sequence room to advance until the next plan. Preempt some if the KV budget does not suffice."""
        preempted: list[Preemption] = []
        moves: list[RowMove] = []
        is_short = self.is_decoding & (self._room(self.computed, self._end) > self.capacity)
        if not is_short.any():
            return [], []
        for slot, ticket in list(self.running.items()):
            if ticket.slot < 0 or not is_short[slot]:
                continue
            needed = int(self._room(self.computed[slot], ticket.end))
            extra = self.rows.charge(needed) - int(self.capacity[slot])
            while ticket.slot >= 0 and self.rows.used_tokens + extra > self.kv_budget:
                preempted.append(self._preempt_youngest())
            if ticket.slot >= 0:
                moves += self.rows.grow(slot, needed)
                self.capacity[slot] = self.rows.capacity(slot)
        self._is_changed = True
        return preempted, self._transfers(moves)

    def _room(self, computed: Any, end: Any) -> Any:
        """Positions that need room in the KV cache until the next plan. ``computed``: positions stored so far."""
        return np.minimum(computed + self._lookahead, end)

    def _transfers(self, moves: list[RowMove]) -> list[RowTransfer]:
        """The copies that carry out these moves of rows."""
        return [
            RowTransfer(source=move.source, target=move.target, count=count)
            for move in moves
            if (count := int(self.computed[move.slot]))
        ]

    def _preempt_youngest(self) -> Preemption:
        slot = next(reversed(self.running))
        ticket = self.running[slot]
        ticket.length = int(self.length[slot])
        self._vacate(ticket)
        self.waiting.appendleft(ticket)
        self.num_preemptions += 1
        return Preemption(ticket=ticket, slot=slot)

    # Admission

    def _admit(self) -> list[Ticket]:
        admitted: list[Ticket] = []
        allowance = self.limits.prefill_chunk
        while self.waiting and self._free_slots:
            ticket = self.waiting[0]
            is_shared = bool(self._residents.get(ticket.sharing))
            if not is_shared and allowance <= 0:
                break
            target = self._prefill_target(ticket)
            num_shared = ticket.prompt_length - 1 if is_shared else 0
            if (
                self.rows.used_tokens + self.rows.charge(int(self._room(target, ticket.end)), num_shared)
                > self.kv_budget
            ):
                break
            if not is_shared:
                allowance -= target
            self._seat(self.waiting.popleft(), target, num_shared)
            admitted.append(ticket)
        return admitted

    def _prefill_target(self, ticket: Ticket) -> int:
        return (ticket.prompt_length if self.deterministic else ticket.length) - 1

    def _seat(self, ticket: Ticket, target: int, num_shared: int) -> None:
        slot = heappop(self._free_slots)
        ticket.slot = slot
        residents = self._residents.setdefault(ticket.sharing, {})
        leader = next(iter(residents), None)
        self.rows.place(slot, int(self._room(target, ticket.end)), leader=leader, num_shared=num_shared)
        self.running[slot] = ticket
        residents[slot] = None
        self.seat[slot] += 1
        self.capacity[slot] = self.rows.capacity(slot)
        self.length[slot] = ticket.length
        self._end[slot] = ticket.end
        self.computed[slot] = 0
        if target > 0:
            self._prefilling[slot] = target
        else:
            self.is_decoding[slot] = True
        self._is_changed = True

    def _vacate(self, ticket: Ticket) -> None:
        slot = ticket.slot
        ticket.slot = -1
        del self.running[slot]
        residents = self._residents[ticket.sharing]
        del residents[slot]
        if not residents:
            del self._residents[ticket.sharing]
        self._prefilling.pop(slot, None)
        self.is_decoding[slot] = False
        self.rows.remove(slot)
        heappush(self._free_slots, slot)
        self._is_changed = True

    # Prefill

    def _prefill(self) -> tuple[list[Chunk], list[RowTransfer], list[Chunk]]:
        """Plan the prefill of sequences that cannot decode yet."""
        allowance = _Allowance(self.limits.prefill_chunk)
        leaders = [slot for slot in self._prefilling if not self._is_follower(slot)]
        chunks = [chunk for slot in leaders for chunk in self._take_chunks(slot, allowance)]
        followers = [slot for slot in list(self._prefilling) if self._can_copy(slot)]
        copies = [copy for slot in followers if (copy := self._take_copy(slot))]
        unfinished = [slot for slot in followers if slot in self._prefilling]
        late_chunks = [chunk for slot in unfinished for chunk in self._take_chunks(slot, allowance)]
        return chunks, copies, late_chunks

    def _take_chunks(self, slot: int, allowance: _Allowance) -> list[Chunk]:
        target = self._prefilling[slot]
        start = int(self.computed[slot])
        if not self.deterministic:
            count = (allowance.take_packed if self._is_packed else allowance.take_padded)(target - start)
            chunks = [Chunk(slot=slot, start=start, count=count)] if count else []
        else:
            chunks = []
            while start < target and allowance.take_fixed():
                chunks.append(Chunk(slot=slot, start=start, count=min(DETERMINISTIC_CHUNK, target - start)))
                start = chunks[-1].start + chunks[-1].count
        if chunks:
            self._advance(slot, chunks[-1].start + chunks[-1].count)
        return chunks

    def _can_copy(self, slot: int) -> bool:
        shared = self.running[slot].prompt_length - 1
        return self._is_follower(slot) and bool(self.computed[self._leader(slot)] >= shared)

    def _take_copy(self, slot: int) -> RowTransfer | None:
        shared = self.running[slot].prompt_length - 1
        self._advance(slot, shared)
        return self.rows.copy_prompt(self._leader(slot), slot, shared)

    def _is_follower(self, slot: int) -> bool:
        has_shared_tokens = self.running[slot].prompt_length > 1
        return has_shared_tokens and self.computed[slot] == 0 and self._leader(slot) != slot

    def _leader(self, slot: int) -> int:
        """The oldest running ticket with the same prompt."""
        return next(iter(self._residents[self.running[slot].sharing]))

    def _advance(self, slot: int, computed: int) -> None:
        self.computed[slot] = computed
        if computed == self._prefilling[slot]:
            del self._prefilling[slot]
            self.is_decoding[slot] = True


class _Allowance:
    """The number of tokens that one plan may still prefill."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._num_chunks = 0
        self._longest = 0

    def take_padded(self, wanted: int) -> int:
        """Chunks of one plan are padded to the longest: all of ``wanted`` or nothing, but a first chunk is cut."""
        count = min(wanted, self._limit)
        longest = max(self._longest, count)
        if self._num_chunks and (count < wanted or (self._num_chunks + 1) * longest > self._limit):
            return 0
        self._num_chunks += 1
        self._longest = longest
        return count

    def take_packed(self, wanted: int) -> int:
        """As much of ``wanted`` as is left."""
        count = min(wanted, self._limit)
        self._limit -= count
        return count

    def take_fixed(self) -> bool:
        if self._num_chunks and (self._num_chunks + 1) * DETERMINISTIC_CHUNK > self._limit:
            return False
        self._num_chunks += 1
        return True
