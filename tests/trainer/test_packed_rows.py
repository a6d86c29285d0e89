"""States travel between nodes and rows as they do through an embedding, gradients included."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.algorithms.prefix_tree import plant
from tailrace.trainer.packed_rows import PackedRows

CPU = torch.device("cpu")
sequences = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6), min_size=1, max_size=6)


@given(sequences)
@example([[0, 1, 2], [0, 1, 3], [0, 1, 4], [1, 0, 2], [1, 0, 3], [1, 0, 4], [1, 0, 5]])  # nodes on 3 and on 4 rows
def test_states_and_gradients_are_those_of_an_embedding(given_tokens: list[list[int]]) -> None:
    tree = plant([np.array(tokens, np.int32) for tokens in given_tokens])
    rows = PackedRows.of(tree, CPU)
    nodes = torch.from_numpy(np.concatenate([tree.paths[leaf] for leaf in tree.leaves]))
    states = torch.randn(len(tree.tokens_U), 3, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(len(nodes), 3, dtype=torch.float64)
    copies = rows.from_nodes(states)
    assert torch.equal(copies, F.embedding(nodes, states))
    (gradient,) = torch.autograd.grad((copies * weights).sum(), states)
    (expected,) = torch.autograd.grad((F.embedding(nodes, states) * weights).sum(), states)
    torch.testing.assert_close(gradient, expected)


@given(sequences)
def test_every_node_gets_its_state_back_and_one_place_its_gradient(given_tokens: list[list[int]]) -> None:
    tree = plant([np.array(tokens, np.int32) for tokens in given_tokens])
    rows = PackedRows.of(tree, CPU)
    states = torch.randn(len(tree.tokens_U), 3, dtype=torch.float64)
    copies = rows.from_nodes(states).requires_grad_()
    found = rows.to_nodes(copies)
    assert torch.equal(found, states)
    weights = torch.randn_like(found)
    (gradient,) = torch.autograd.grad((found * weights).sum(), copies)
    total = torch.zeros_like(states).index_add_(0, rows.nodes_R, gradient)
    torch.testing.assert_close(total, weights)
    assert int(gradient.abs().sum(1).count_nonzero()) == len(states)


def test_tokens_common_to_all_prompts_do_not_multiply_the_places_of_others() -> None:
    """A chat template is on every row. The prompts behind it are on eight rows each."""
    prompts = [[1, 2, 3, *(10 + number * 50 + place for place in range(50))] for number in range(16)]
    tree = plant([np.array([*prompt, 5, 1000 + member], np.int32) for prompt in prompts for member in range(8)])
    rows = PackedRows.of(tree, CPU)
    assert [tuple(copies.places_SC.shape) for copies in rows.copies] == [(16 * 51, 8), (3, 128)]
    assert not any(copies.is_extra_SC.any() for copies in rows.copies)


@given(sequences)
def test_places_are_repeated_less_often_than_there_are_places(given_tokens: list[list[int]]) -> None:
    rows = PackedRows.of(plant([np.array(tokens, np.int32) for tokens in given_tokens]), CPU)
    num_entries = sum(copies.places_SC.numel() for copies in rows.copies)
    assert num_entries <= 2 * len(rows.nodes_R)


def test_many_copies_in_bfloat16_are_added_up_in_fp32() -> None:
    prompt = [1] * 4
    tree = plant([np.array([*prompt, 2 + number], np.int32) for number in range(300)])
    rows = PackedRows.of(tree, CPU)
    states = torch.zeros(len(tree.tokens_U), 1, dtype=torch.bfloat16, requires_grad=True)
    rows.from_nodes(states).sum().backward()
    assert states.grad is not None
    assert states.grad[: len(prompt)].flatten().tolist() == pytest.approx([300.0] * 4)  # bfloat16 sums stop at 256
