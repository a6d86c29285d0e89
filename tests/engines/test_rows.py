"""Row accounting, with random histories and no tensors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.engines.native.rows import Row, RowTable

CAPACITIES = (4, 8, 16)


def test_a_sequence_lives_in_the_smallest_class_that_holds_it() -> None:
    table = RowTable(CAPACITIES)
    assert [table.place(slot, length).length_class for slot, length in enumerate((1, 4, 5, 8, 9, 16))] == [
        0, 0, 1, 1, 2, 2,
    ]  # fmt: skip
    with pytest.raises(ValueError, match="17"):
        table.place(9, 17)


def test_a_free_row_is_taken_before_a_new_one() -> None:
    table = RowTable(CAPACITIES)
    for slot in range(3):
        table.place(slot, 1)
    table.remove(1)
    assert table.place(7, 2) == Row(0, 1)
    assert table.compact() == []


def test_a_slot_owns_one_row() -> None:
    table = RowTable(CAPACITIES)
    table.place(0, 1)
    with pytest.raises(ValueError, match="slot 0"):
        table.place(0, 5)


ACTIONS = st.lists(st.tuples(st.sampled_from(["place", "remove", "grow", "compact"]), st.integers(0, 9)), max_size=60)


@given(ACTIONS)
def test_contents_follow_their_owner_through_any_history(actions: list[tuple[str, int]]) -> None:
    table = RowTable(CAPACITIES)
    lengths: dict[int, int] = {}
    contents: dict[Row, int] = {}
    for action, slot in actions:
        moves = []
        if action == "place" and slot not in lengths:
            lengths[slot] = 1 + slot
            contents[table.place(slot, lengths[slot])] = slot
        elif action == "remove" and slot in lengths:
            contents.pop(table.row(slot))
            del lengths[slot]
            table.remove(slot)
        elif action == "grow" and slot in lengths and table.capacity(slot) < 16:
            lengths[slot] = table.capacity(slot) + 1
            moves = table.grow(slot, lengths[slot])
        elif action == "compact":
            moves = table.compact()
        for move in moves:
            assert contents.pop(move.source) == move.slot
            assert move.target not in contents
            contents[move.target] = move.slot
        table.check()
        assert contents == {table.row(slot): slot for slot in lengths}
        assert table.used_tokens == sum(table.charge(length) for length in lengths.values())
    table.compact()
    assert table.extents == [len(table.owners(index)) for index in range(3)]
