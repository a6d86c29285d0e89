from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.algorithms.packing import pack

LENGTHS = st.lists(st.integers(1, 60), max_size=40)


def cost(lengths: list[int], packs: list[list[int]], overhead: int) -> int:
    return sum(len(members) * max(lengths[index] for index in members) + overhead for members in packs)


@settings(max_examples=100, deadline=None)
@given(LENGTHS, st.integers(1, 200), st.integers(0, 100))
def test_every_sequence_appears_once_and_no_budget_is_exceeded(lengths: list[int], budget: int, overhead: int) -> None:
    packs = pack(lengths, max_tokens=budget, overhead_tokens=overhead)
    assert sorted(itertools.chain.from_iterable(packs)) == list(range(len(lengths)))
    for members in packs:
        longest = max(lengths[index] for index in members)
        assert len(members) * longest <= budget or len(members) == 1
    assert packs == pack(lengths, max_tokens=budget, overhead_tokens=overhead)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(10, 60), st.integers(0, 30))
def test_no_other_cut_of_the_sorted_sequences_is_cheaper(lengths: list[int], budget: int, overhead: int) -> None:
    descending = sorted(lengths, reverse=True)
    costs = []
    for bits in range(2 ** (len(lengths) - 1)):
        ends = [place + 1 for place in range(len(lengths) - 1) if bits >> place & 1]
        pieces = [descending[a:b] for a, b in itertools.pairwise([0, *ends, len(lengths)])]
        if all(len(piece) * piece[0] <= budget or len(piece) == 1 for piece in pieces):
            costs.append(sum(len(piece) * piece[0] + overhead for piece in pieces))
    assert cost(lengths, pack(lengths, max_tokens=budget, overhead_tokens=overhead), overhead) == min(costs)


def test_a_straggler_is_not_padded_together_with_short_ones() -> None:
    packs = pack([20, 500, 21, 20, 22], max_tokens=16384, overhead_tokens=64)
    assert packs == [[1], [4, 2, 0, 3]]


def test_a_sequence_longer_than_the_budget_gets_its_own_micro_batch() -> None:
    assert pack([5, 300, 5], max_tokens=100, overhead_tokens=64) == [[1], [0, 2]]


def test_equal_lengths_keep_their_order() -> None:
    assert pack([7, 7, 7, 7], max_tokens=14, overhead_tokens=1) == [[0, 1], [2, 3]]


def test_nothing_to_pack_gives_no_micro_batch() -> None:
    assert pack([], max_tokens=10, overhead_tokens=64) == []


@pytest.mark.parametrize(("lengths", "budget"), [([3, 0], 10), ([3], 0)])
def test_empty_sequences_and_budgets_are_refused(lengths: list[int], budget: int) -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        pack(lengths, max_tokens=budget, overhead_tokens=64)
