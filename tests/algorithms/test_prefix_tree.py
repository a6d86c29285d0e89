from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.algorithms.prefix_tree import COPY_SHARE, PLACE_SHARE, plant, split

Sequences = list[list[int]]
ALIKE = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=12)
"""Three tokens only, so that sequences often begin alike."""


def arrays(sequences: Sequences) -> list[np.ndarray]:
    return [np.array(sequence, np.int32) for sequence in sequences]


def prefixes(sequences: Sequences) -> set[tuple[int, ...]]:
    return {tuple(sequence[:end]) for sequence in sequences for end in range(1, len(sequence) + 1)}


def test_a_group_by_hand() -> None:
    """Two responses to the prompt 7 8, one of them twice, and a prompt of its own."""
    tree = plant(arrays([[7, 8, 1, 2], [7, 8, 3], [9, 9], [7, 8, 1, 2], [7, 8]]))
    assert tree.tokens_U.tolist() == [7, 8, 1, 2, 3, 9, 9]
    assert tree.positions_U.tolist() == [0, 1, 2, 3, 2, 0, 1]
    assert [path.tolist() for path in tree.paths] == [[0, 1, 2, 3], [0, 1, 4], [5, 6], [0, 1, 2, 3], [0, 1]]
    assert tree.leaves == [3, 1, 2]


@settings(max_examples=200, deadline=None)
@given(ALIKE)
def test_each_distinct_prefix_is_one_node_and_each_path_spells_its_sequence(sequences: Sequences) -> None:
    tree = plant(arrays(sequences))
    assert len(tree.tokens_U) == len(prefixes(sequences))
    for sequence, path in zip(sequences, tree.paths, strict=True):
        assert tree.tokens_U[path].tolist() == sequence
        assert tree.positions_U[path].tolist() == list(range(len(sequence)))
    nodes_of = {tuple(sequence): path.tolist() for sequence, path in zip(sequences, tree.paths, strict=True)}
    assert len({tuple(path) for path in nodes_of.values()}) == len(nodes_of)


@settings(max_examples=200, deadline=None)
@given(ALIKE)
def test_leaves_cover_every_node_and_none_begins_another(sequences: Sequences) -> None:
    tree = plant(arrays(sequences))
    leaves = [tuple(sequences[leaf]) for leaf in tree.leaves]
    assert prefixes([list(leaf) for leaf in leaves]) == prefixes(sequences)
    assert not any(a != b and b[: len(a)] == a for a in leaves for b in leaves)
    assert len(set(leaves)) == len(leaves)


def is_allowed(tree: Sequences, budget: int) -> bool:
    nodes, tokens = len(prefixes(tree)), sum(map(len, tree))
    places = len(tree) * max(map(len, tree))
    return len(tree) == 1 or nodes + (tokens - nodes) // COPY_SHARE + places // PLACE_SHARE <= budget


@settings(max_examples=200, deadline=None)
@given(ALIKE, st.integers(1, 40), st.integers(0, 10))
def test_every_sequence_is_in_one_tree_and_no_tree_too_large(sequences: Sequences, budget: int, overhead: int) -> None:
    parts = split(arrays(sequences), max_tokens=budget, overhead_tokens=overhead)
    assert sorted(index for part in parts for index in part) == list(range(len(sequences)))
    assert all(is_allowed([sequences[index] for index in part], budget) for part in parts)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=7), st.data())
def test_no_other_cut_of_the_sorted_sequences_costs_less(sequences: Sequences, data: st.DataObject) -> None:
    budget, overhead = data.draw(st.integers(1, 20)), data.draw(st.integers(0, 10))

    def cost(trees: list[Sequences]) -> int:
        return sum(len(prefixes(tree)) + overhead for tree in trees)

    ordered, places = sorted(sequences), range(1, len(sequences))
    ends = (ends for count in range(len(sequences)) for ends in itertools.combinations(places, count))
    cuts = [[ordered[a:b] for a, b in itertools.pairwise([0, *inner, len(ordered)])] for inner in ends]
    least = min(cost(trees) for trees in cuts if all(is_allowed(tree, budget) for tree in trees))
    parts = split(arrays(sequences), max_tokens=budget, overhead_tokens=overhead)
    assert cost([[sequences[index] for index in part] for part in parts]) == least


def test_a_response_given_again_and_again_is_not_for_nothing() -> None:
    """It adds no node, but logits: a quarter of its length each time."""
    parts = split([np.arange(1000, dtype=np.int32)] * 32, max_tokens=4000, overhead_tokens=10**6)
    assert max(len(part) for part in parts) == 12


def test_one_long_sequence_does_not_pad_many_short_ones() -> None:
    short = [np.array([number], np.int32) for number in range(1500)]
    long = np.arange(700, 8700, dtype=np.int32)  # among the others by content
    parts = split([*short, long], max_tokens=16384, overhead_tokens=128)
    assert len(parts) > 1
    assert max(len(part) * (len(long) if 1500 in part else 1) for part in parts) <= 16384 * PLACE_SHARE


def test_sequences_are_parted_where_they_share_least() -> None:
    """The middle pair shares one token, its neighbours four: one cut is needed, and it is made there."""
    sequences = arrays([[1, 2, 2, 2, 5], [1, 1, 1, 1, 5], [1, 1, 1, 1, 6], [1, 2, 2, 2, 6]])
    assert split(sequences, max_tokens=9, overhead_tokens=100) == [[1, 2], [0, 3]]


def test_the_given_order_changes_no_tree() -> None:
    sequences = arrays([[1, 2, 3], [1, 2], [4], [1, 5], [4, 4]])
    parts = split(sequences, max_tokens=4, overhead_tokens=1)
    back = split(sequences[::-1], max_tokens=4, overhead_tokens=1)
    assert [[4 - index for index in part] for part in back] == parts


def test_nothing_to_plant_and_nothing_to_split() -> None:
    assert split([], max_tokens=4, overhead_tokens=1) == []
    for broken in ([[1], []], [[]]):
        with pytest.raises(ValueError, match="at least 1 token"):
            split(arrays(broken), max_tokens=4, overhead_tokens=1)
    with pytest.raises(ValueError, match="max_tokens must be at least 1, got 0"):
        split(arrays([[1]]), max_tokens=0, overhead_tokens=1)
