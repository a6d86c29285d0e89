"""Pages: every sequence finds its own keys and values, whatever others do, and no page is lost. No tensors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.core.ids import GroupId, ResponseId
from tailrace.engines.native.batcher import Batcher
from tailrace.engines.native.limits import EngineLimits
from tailrace.engines.native.paged.kv_pages import PageTable
from tailrace.engines.native.step_plan import Chunk, Ticket

PAGE, STEPS, MAX_LENGTH = 4, 3, 40


def make_table(num_pages: int = 10) -> PageTable:
    return PageTable(num_slots=4, max_length=MAX_LENGTH, num_pages=num_pages, page_size=PAGE)


def test_whole_pages_of_a_prompt_are_shared_and_the_rest_is_copied() -> None:
    table = make_table()
    table.place(0, 11)
    table.place(1, 13, leader=0, num_shared=10)
    assert table.blocks[1, :2].tolist() == table.blocks[0, :2].tolist()
    assert not set(table.blocks[1, 2:4].tolist()) & set(table.blocks[0, :3].tolist())
    assert table.used_tokens == 5 * PAGE
    copy = table.copy_prompt(0, 1, 10)
    assert copy is not None
    assert (copy.source.row, copy.target.row, copy.count) == (table.blocks[0, 2], table.blocks[1, 2], 2)
    assert table.copy_prompt(0, 1, 8) is None, "nothing is left to copy"


def test_a_shared_page_is_free_when_the_last_sequence_has_left() -> None:
    table = make_table()
    table.place(0, 8)
    table.place(1, 8, leader=0, num_shared=8)
    table.remove(0)
    assert table.used_tokens == 2 * PAGE
    table.remove(1)
    assert table.used_tokens == 0
    table.check()


def test_a_full_pool_is_an_error_and_so_is_a_second_place() -> None:
    table = make_table(num_pages=2)
    table.place(0, 5)
    with pytest.raises(ValueError, match="slot 0 already has pages"):
        table.place(0, 1)
    with pytest.raises(RuntimeError, match="1 pages are needed, 0 of 2 are free"):
        table.grow(0, 9)


def test_only_changed_slots_are_named() -> None:
    table = make_table()
    table.place(2, 3)
    table.place(0, 3)
    table.remove(0)
    assert table.take_changed().tolist() == [2]
    assert table.take_changed().tolist() == []
    table.grow(2, 5)
    assert table.take_changed().tolist() == [2]


class World:
    """A batcher with pages, and a picture of what each position of each page holds."""

    def __init__(self, num_pages: int, chunk: int) -> None:
        limits = EngineLimits(max_running=4, max_length=MAX_LENGTH, kv_tokens=num_pages * PAGE, prefill_chunk=chunk)
        self.table = make_table(num_pages)
        self.batcher = Batcher(limits, self.table, lookahead=2 * STEPS, is_packed=True)
        self.pages: dict[tuple[int, int], object] = {}
        self.tickets: list[Ticket] = []

    def submit(self, prompt: int, length: int) -> None:
        name = ResponseId(GroupId("train", 0, prompt), len(self.tickets))
        self.tickets.append(Ticket(name=name, sharing=prompt, prompt_length=length, length=length, end=MAX_LENGTH))
        self.batcher.enqueue(self.tickets[-1])

    def step(self) -> None:
        plan = self.batcher.plan()
        self.table.check()
        self.prefill(plan.chunks)
        for copy in plan.copies:
            for offset in range(copy.count):
                self.pages[copy.target.row, offset] = self.pages[copy.source.row, offset]
        self.prefill(plan.late_chunks)
        for slot in np.flatnonzero(self.batcher.is_decoding).tolist():
            self.decode(slot)

    def decode(self, slot: int) -> None:
        """Up to STEPS tokens; before each, everything behind it must be there."""
        for _ in range(STEPS):
            position = int(self.batcher.computed[slot])
            if position + 1 >= MAX_LENGTH:
                return
            self.write(slot, position)
            for earlier in range(position + 1):
                assert self.pages[self.place(slot, earlier)] == self.label(slot, earlier)
            self.batcher.computed[slot] += 1
            self.batcher.length[slot] += 1

    def prefill(self, chunks: tuple[Chunk, ...]) -> None:
        for chunk in chunks:
            for position in range(chunk.start, chunk.start + chunk.count):
                self.write(chunk.slot, position)

    def write(self, slot: int, position: int) -> None:
        assert position < self.table.capacity(slot)
        self.pages[self.place(slot, position)] = self.label(slot, position)

    def place(self, slot: int, position: int) -> tuple[int, int]:
        return int(self.table.blocks[slot, position // PAGE]), position % PAGE

    def label(self, slot: int, position: int) -> object:
        """Positions of a prompt are the same for all that share it, the last one excepted: it is decoded by each."""
        ticket = self.batcher.running[slot]
        return (ticket.sharing if position < ticket.prompt_length - 1 else ticket.name, position)


actions = st.one_of(
    st.tuples(st.just("submit"), st.integers(0, 2)),
    st.tuples(st.just("step"), st.just(0)),
    st.tuples(st.just("leave"), st.integers(0, 3)),
)


@given(history=st.lists(actions, max_size=40), num_pages=st.integers(10, 24), chunk=st.integers(1, 30))
@settings(max_examples=150, deadline=None)
def test_every_sequence_finds_its_own_keys_through_any_history(
    history: list[tuple[str, int]], num_pages: int, chunk: int
) -> None:
    world = World(num_pages, chunk)
    for action, number in history:
        if action == "submit":
            world.submit(number, [3, 9, 17][number])
        elif action == "step":
            world.step()
        elif world.batcher.running:
            slots = list(world.batcher.running)
            world.batcher.leave(world.batcher.running[slots[number % len(slots)]])
            world.table.check()
    for ticket in list(world.batcher.running.values()):
        world.batcher.leave(ticket)
    assert world.table.used_tokens == 0
