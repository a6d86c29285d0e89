from __future__ import annotations

import itertools
from typing import TypeVar

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.algorithms.packing import cheapest_cuts, pack

Item = TypeVar("Item")
SIZES = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), max_size=40)


def cost(sizes: list[tuple[int, int]], overhead: int) -> int:
    """Of one batch: rows padded to its most queries and most keys."""
    return len(sizes) * max(queries for queries, _ in sizes) * max(keys for _, keys in sizes) + overhead


def cuts_of(items: list[Item]) -> list[list[list[Item]]]:
    """Every way to cut a row of items into pieces."""
    found = []
    for bits in range(2 ** (len(items) - 1)):
        ends = [place + 1 for place in range(len(items) - 1) if bits >> place & 1]
        found.append([items[a:b] for a, b in itertools.pairwise([0, *ends, len(items)])])
    return found


@settings(max_examples=100, deadline=None)
@given(SIZES, st.integers(0, 1000))
def test_every_row_appears_once_and_the_packs_are_the_same_again(sizes: list[tuple[int, int]], overhead: int) -> None:
    packs = pack(sizes, overhead=overhead)
    assert sorted(itertools.chain.from_iterable(packs)) == list(range(len(sizes)))
    assert packs == pack(sizes, overhead=overhead)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=8), st.integers(0, 500))
def test_no_other_cut_of_the_sorted_rows_is_cheaper(sizes: list[tuple[int, int]], overhead: int) -> None:
    cuts = cuts_of(sorted(sizes, key=lambda size: (-size[1], -size[0])))
    least = min(sum(cost(piece, overhead) for piece in pieces) for pieces in cuts)
    packs = pack(sizes, overhead=overhead)
    assert sum(cost([sizes[index] for index in members], overhead) for members in packs) == least


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 20))
def test_cuts_of_limited_size_are_the_cheapest_of_those(items: list[int], limit: int) -> None:
    """A piece is as large as the sum of its items and costs the square of its first."""
    sums, squares = np.concatenate([[0], np.cumsum(items)]), np.array(items) ** 2
    cuts = cheapest_cuts(len(items), lambda starts, end: (squares[starts], sums[end] - sums[starts]), max_size=limit)
    assert [place for start, end in cuts for place in range(start, end)] == list(range(len(items)))
    allowed = [pieces for pieces in cuts_of(items) if all(sum(piece) <= limit or len(piece) == 1 for piece in pieces)]
    least = min(sum(piece[0] ** 2 for piece in pieces) for pieces in allowed)
    assert sum(items[start] ** 2 for start, _ in cuts) == least


@settings(max_examples=100, deadline=None)
@given(SIZES, st.integers(1, 2000))
def test_a_pack_of_several_rows_has_at_most_so_many_scores(sizes: list[tuple[int, int]], limit: int) -> None:
    packs = pack(sizes, overhead=10**6, max_scores=limit)
    assert sorted(itertools.chain.from_iterable(packs)) == list(range(len(sizes)))
    for members in packs:
        assert len(members) == 1 or cost([sizes[index] for index in members], 0) <= limit


def test_a_straggler_is_not_padded_together_with_short_ones() -> None:
    assert pack([(length, length) for length in (20, 500, 21, 20, 22)], overhead=4096) == [[1], [4, 2, 0, 3]]


def test_equal_rows_keep_their_order() -> None:
    assert pack([(7, 7)] * 4, overhead=1) == [[0, 1, 2, 3]]


def test_nothing_to_pack_gives_no_batch() -> None:
    assert pack([], overhead=64) == []
