"""The batcher's promises, with random histories and no tensors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.core.ids import GroupId, ResponseId
from tailrace.engines.native.batcher import Batcher
from tailrace.engines.native.limits import EngineLimits
from tailrace.engines.native.paged.kv_pages import PageTable
from tailrace.engines.native.rows import RowTable
from tailrace.engines.native.step_plan import DETERMINISTIC_CHUNK, Plan, Ticket


def make_ticket(
    group: int, member: int = 0, *, prompt_length: int = 10, prefix_length: int = 0, end: int = 256
) -> Ticket:
    return Ticket(
        name=ResponseId(GroupId("train", 0, group), member),
        sharing=group,
        prompt_length=prompt_length,
        length=prompt_length + prefix_length,
        end=end,
    )


def test_a_sequence_gets_no_room_behind_its_end() -> None:
    limits = EngineLimits(max_running=2, max_length=64, kv_tokens=64, prefill_chunk=64)
    pages = PageTable(num_slots=2, max_length=64, num_pages=4, page_size=16)
    batcher = Batcher(limits, pages, lookahead=16, is_packed=True)
    for group in range(2):
        batcher.enqueue(make_ticket(group, prompt_length=30, end=32))
    assert len(batcher.plan().admitted) == 2  # with 16 positions of lookahead behind the prompt each would need three
    assert pages.used_tokens == 64


def make_batcher(
    *, max_running: int = 4, max_length: int = 256, kv_tokens: int = 1024, chunk: int = 64, deterministic: bool = False
) -> Batcher:
    limits = EngineLimits(max_running=max_running, max_length=max_length, kv_tokens=kv_tokens, prefill_chunk=chunk)
    return Batcher(limits, RowTable(limits.capacities), deterministic=deterministic)


def decode(batcher: Batcher) -> None:
    """What the engine does after a plan: compute one position of every decoding slot."""
    slots = np.flatnonzero(batcher.is_decoding)
    is_new = batcher.computed[slots] + 1 == batcher.length[slots]
    batcher.computed[slots] += 1
    batcher.length[slots[is_new]] += 1


def advance(batcher: Batcher, num_steps: int) -> list[Plan]:
    plans = []
    for _ in range(num_steps):
        plans.append(batcher.plan())
        decode(batcher)
    return plans


def test_the_accounting_imports_no_torch() -> None:
    script = (
        "import sys, tailrace.engines.native.batcher, tailrace.engines.native.rows; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_prompt_is_prefilled_up_to_its_last_token_and_decodes_in_the_same_step() -> None:
    batcher = make_batcher()
    batcher.enqueue(make_ticket(0, prompt_length=10))
    plan = batcher.plan()
    assert [(chunk.start, chunk.count) for chunk in plan.chunks] == [(0, 9)]
    assert batcher.is_decoding.tolist() == [True, False, False, False]


def test_a_one_token_prompt_needs_no_prefill() -> None:
    batcher = make_batcher()
    batcher.enqueue(make_ticket(0, prompt_length=1))
    assert batcher.plan().chunks == ()
    assert batcher.is_decoding[0]


def test_a_plan_without_news_is_unchanged() -> None:
    batcher = make_batcher()
    batcher.enqueue(make_ticket(0))
    first, *later = advance(batcher, 5)
    assert first.is_changed
    assert not any(plan.is_changed for plan in later)


def test_a_long_prompt_is_prefilled_in_chunks() -> None:
    batcher = make_batcher(chunk=64)
    batcher.enqueue(make_ticket(0, prompt_length=200))
    chunks = [chunk for plan in advance(batcher, 5) for chunk in plan.chunks]
    assert [(chunk.start, chunk.count) for chunk in chunks] == [(0, 64), (64, 64), (128, 64), (192, 7)]


def test_padding_counts_towards_the_prefill_limit() -> None:
    batcher = make_batcher(chunk=64)
    for group, length in enumerate((11, 31, 6)):
        batcher.enqueue(make_ticket(group, prompt_length=length))
    assert [chunk.count for chunk in batcher.plan().chunks] == [10, 30]
    assert [chunk.count for chunk in batcher.plan().chunks] == [5]


def test_a_group_that_arrives_together_is_prefilled_once() -> None:
    batcher = make_batcher()
    for member in range(4):
        batcher.enqueue(make_ticket(0, member))
    plan = batcher.plan()
    assert len(plan.chunks) == 1
    assert {copy.source for copy in plan.copies} == {batcher.rows.row(plan.chunks[0].slot)}
    assert [copy.count for copy in plan.copies] == [9, 9, 9]
    assert batcher.is_decoding.all()
    assert batcher.num_prefilled_tokens == 9


def test_a_late_member_copies_from_one_that_is_still_running() -> None:
    batcher = make_batcher(max_running=2)
    tickets = [make_ticket(0, member) for member in range(3)]
    for ticket in tickets:
        batcher.enqueue(ticket)
    advance(batcher, 3)
    batcher.leave(tickets[0])
    plan = batcher.plan()
    assert plan.chunks == ()
    assert [(copy.source, copy.count) for copy in plan.copies] == [(batcher.rows.row(tickets[1].slot), 9)]


def test_followers_of_a_leader_that_leaves_during_its_prefill_get_a_new_leader() -> None:
    batcher = make_batcher(chunk=64)
    tickets = [make_ticket(0, member, prompt_length=150) for member in range(3)]
    for ticket in tickets:
        batcher.enqueue(ticket)
    batcher.plan()
    batcher.leave(tickets[0])
    plans = advance(batcher, 4)
    chunks = [chunk for plan in plans for chunk in plan.chunks]
    assert [(chunk.slot, chunk.start) for chunk in chunks] == [(1, 0), (1, 64), (1, 128)]
    assert sum(len(plan.copies) for plan in plans) == 1
    assert batcher.is_decoding[[1, 2]].all()


def test_members_with_a_prefix_share_the_prompt_and_compute_their_own_rest() -> None:
    batcher = make_batcher()
    batcher.enqueue(make_ticket(0, 0))
    batcher.enqueue(make_ticket(0, 1, prefix_length=5))
    plan = batcher.plan()
    assert [(chunk.start, chunk.count) for chunk in plan.late_chunks] == [(9, 5)]
    assert batcher.computed[:2].tolist() == [9, 14]


def test_in_deterministic_mode_only_prompts_are_prefilled_in_chunks_of_one_size() -> None:
    batcher = make_batcher(chunk=2 * DETERMINISTIC_CHUNK, deterministic=True)
    batcher.enqueue(make_ticket(0, prompt_length=150, prefix_length=40))
    chunks = [chunk for plan in advance(batcher, 2) for chunk in plan.chunks]
    assert [(chunk.start, chunk.count) for chunk in chunks] == [(0, 64), (64, 64), (128, 21)]
    assert batcher.length[0] == 190
    advance(batcher, 40)
    assert batcher.length[0] == 191


def test_the_youngest_is_preempted_and_comes_back_first() -> None:
    batcher = make_batcher(max_length=256, kv_tokens=256)
    tickets = [make_ticket(group, prompt_length=60) for group in range(5)]
    for ticket in tickets:
        batcher.enqueue(ticket)
    preempted = [item for plan in advance(batcher, 8) for item in plan.preempted]
    assert [item.ticket.name.group.prompt for item in preempted] == [3, 2]
    assert [ticket.name.group.prompt for ticket in batcher.waiting] == [2, 3, 4]
    assert batcher.num_preemptions == 2
    batcher.leave(tickets[0])
    assert [ticket.name.group.prompt for ticket in batcher.plan().admitted] == [2, 3]


def test_a_budget_that_cannot_hold_one_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="kv_tokens"):
        EngineLimits(max_running=1, max_length=100, kv_tokens=99)


REQUESTS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 90), st.integers(0, 60)), min_size=1, max_size=14)


@given(REQUESTS, st.integers(1, 5), st.integers(200, 500), st.integers(1, 80), st.booleans(), st.randoms())
def test_promises_hold_in_any_history(
    requests: Sequence[tuple[int, int, int]], max_running: int, kv_tokens: int, chunk: int, deterministic: bool, random
) -> None:
    batcher = make_batcher(
        max_running=max_running, max_length=200, kv_tokens=kv_tokens, chunk=chunk, deterministic=deterministic
    )
    todo = [
        make_ticket(group * 100 + prompt, member, prompt_length=prompt, prefix_length=prefix)
        for member, (group, prompt, prefix) in enumerate(requests)
    ]
    arrival = {ticket.name: index for index, ticket in enumerate(todo)}
    num_left = 0
    for _ in range(6000):
        if todo and random.random() < 0.5:
            batcher.enqueue(todo.pop(0))
        plan = batcher.plan()
        check_plan(batcher, plan, chunk, arrival)
        decode(batcher)
        for ticket in list(batcher.running.values()):
            if batcher.length[ticket.slot] >= 199 or random.random() < 0.01:
                batcher.leave(ticket)
                num_left += 1
        if num_left == len(requests):
            break
    assert num_left == len(requests)
    assert (batcher.rows.used_tokens, len(batcher.rows)) == (0, 0)


def check_plan(batcher: Batcher, plan: Plan, chunk_limit: int, arrival: dict[ResponseId, int]) -> None:
    batcher.rows.check()
    assert batcher.rows.used_tokens <= batcher.limits.kv_budget
    running = [arrival[ticket.name] for ticket in batcher.running.values()]
    waiting = [arrival[ticket.name] for ticket in batcher.waiting]
    assert running == sorted(running)
    assert waiting == sorted(waiting)
    assert not running or not waiting or running[-1] < waiting[0]
    chunks = [*plan.chunks, *plan.late_chunks]
    if batcher.deterministic:
        assert len(chunks) <= max(1, chunk_limit // DETERMINISTIC_CHUNK)
        assert all(chunk.start % DETERMINISTIC_CHUNK == 0 for chunk in chunks)
    elif chunks:
        longest = max(chunk.count for chunk in chunks)
        assert len(chunks) * longest <= max(chunk_limit, longest)
        assert longest <= chunk_limit
    for slot, ticket in batcher.running.items():
        assert ticket.slot == slot
        assert batcher.computed[slot] < batcher.length[slot]
        assert batcher.computed[slot] < batcher.rows.capacity(slot) == batcher.capacity[slot]
        if batcher.is_decoding[slot] and not batcher.deterministic:
            assert batcher.computed[slot] == batcher.length[slot] - 1
