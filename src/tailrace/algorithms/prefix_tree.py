"""Token sequences that begin alike share nodes: each distinct prefix is one node of a tree.

What a causal model computes at a token depends on the tokens up to it alone. A system prompt, the prompt of a group and
the words with which its responses begin therefore need to be computed once, however many sequences go through them.

S sequences, U nodes. Sorting by content puts sequences with a common prefix side by side; the nodes that a sequence
adds are those behind its longest common prefix with the one before it. Everything follows from the content: the order
in which sequences are given changes nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tailrace.algorithms.packing import cheapest_cuts

Tokens = NDArray[np.int32]
Indices = NDArray[np.int64]

COPY_SHARE = 4
"""A node costs memory in every layer's many matrices; each further sequence that goes through it about a quarter of
that at most: copies for attention, logits of its own."""

PLACE_SHARE = 256
"""Losses see sequences as rows that are padded to the longest: a place costs next to nothing, but there can be many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixTree:
    tokens_U: Indices
    positions_U: Indices
    """Number of tokens before each node."""
    paths: list[Indices]
    """The nodes of each sequence, from its first token to its last."""
    leaves: list[int]
    """Sequences that no other one repeats or continues; every node is on the path of one of them."""


def plant(sequences: Sequence[Tokens]) -> PrefixTree:
    order = _by_content(sequences)
    shared = _shared(sequences, order)
    paths: list[Indices] = [np.empty(0, np.int64)] * len(sequences)
    num_nodes, path = 0, np.empty(0, np.int64)
    for index, num_shared in zip(order, shared, strict=True):
        num_new = len(sequences[index]) - num_shared
        path = np.concatenate([path[:num_shared], np.arange(num_nodes, num_nodes + num_new)])
        paths[index] = path
        num_nodes += num_new
    new = [sequences[index][num_shared:] for index, num_shared in zip(order, shared, strict=True)]
    positions = [np.arange(num_shared, len(sequences[index])) for index, num_shared in zip(order, shared, strict=True)]
    return PrefixTree(
        tokens_U=np.concatenate(new).astype(np.int64),
        positions_U=np.concatenate(positions),
        paths=paths,
        leaves=[index for index, is_leaf in zip(order, _is_leaf(sequences, order, shared), strict=True) if is_leaf],
    )


def split(sequences: Sequence[Tokens], *, max_tokens: int, overhead_tokens: int) -> list[list[int]]:
    """Sequences in trees of limited size, one list of indices per tree, so that the nodes of all trees are few.

    Each tree costs ``overhead_tokens`` besides its nodes. A tree may exceed ``max_tokens`` (nodes, and shares of what
    is copied and padded) only if it has a single sequence.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
    order = _by_content(sequences)
    shared = np.array(_shared(sequences, order), np.int64)
    lengths = np.array([len(sequences[index]) for index in order], np.int64)
    # Running sums: what stands before each place of the order.
    nodes_before = np.concatenate([[0], np.cumsum(lengths - shared)])
    tokens_before = np.concatenate([[0], np.cumsum(lengths)])

    def price(starts: Indices, end: int) -> tuple[Indices, Indices]:
        nodes = nodes_before[end] - nodes_before[starts] + shared[starts]
        copied = tokens_before[end] - tokens_before[starts] - nodes
        places = (end - starts) * np.maximum.accumulate(lengths[starts][::-1])[::-1]
        return nodes + overhead_tokens, nodes + copied // COPY_SHARE + places // PLACE_SHARE

    return [order[start:end] for start, end in cheapest_cuts(len(order), price, max_size=max_tokens)]


def _by_content(sequences: Sequence[Tokens]) -> list[int]:
    """An order in which all sequences with a given prefix are neighbours; equal ones keep their given order."""
    if any(len(sequence) < 1 for sequence in sequences):
        raise ValueError("every sequence must have at least 1 token, got 0")
    keys = [np.asarray(sequence, np.int32).tobytes() for sequence in sequences]
    return sorted(range(len(sequences)), key=keys.__getitem__)


def _shared(sequences: Sequence[Tokens], order: Sequence[int]) -> list[int]:
    """Tokens that each sequence of the order has in common with the one before it."""
    pairs = itertools.pairwise(order)
    return [0, *(_common_prefix(sequences[a], sequences[b]) for a, b in pairs)][: len(order)]


def _common_prefix(first: Tokens, second: Tokens) -> int:
    length = min(len(first), len(second))
    differ = first[:length] != second[:length]
    return int(differ.argmax()) if differ.any() else length


def _is_leaf(sequences: Sequence[Tokens], order: Sequence[int], shared: Sequence[int]) -> list[bool]:
    """Return for each sequence whether it is a leaf: whether the next sequence does not begin with all of it."""
    following = [*shared[1:], -1][: len(order)]
    return [num_shared != len(sequences[index]) for index, num_shared in zip(order, following, strict=True)]
