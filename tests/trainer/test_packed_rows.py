"""States travel between nodes and rows as they do through an embedding, gradients included."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.algorithms.prefix_tree import plant
from tailrace.trainer.model.packed_rows import PackedRows

CPU = torch.device("cpu")
sequences = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6), min_size=1, max_size=6)


@given(sequences)
@example([[0, 1, 2], [0, 1, 3], [0, 1, 4], [1, 0, 2], [1, 0, 3], [1, 0, 4], [1, 0, 5]])  # nodes on 3 and on 4 rows
def test_states_and_gradients_are_those_of_an_embedding(given_tokens: list[list[int]]) -> None:
    tree = plant([np.array(tokens, np.int32) for tokens in given_tokens])
    rows = PackedRows.of(tree, CPU)
    nodes = torch.from_numpy(np.concatenate([tree.paths[leaf] for leaf in tree.leaves]))
    widths = (3, 1)
    states = [torch.randn(len(tree.tokens_U), width, dtype=torch.float64, requires_grad=True) for width in widths]
    weights = [torch.randn(len(nodes), width, dtype=torch.float64) for width in widths]
    for copies, given_states, weight in zip(rows.from_nodes(*states), states, weights, strict=True):
        expected = F.embedding(nodes, given_states)
        assert torch.equal(copies, expected)
        gradients = [
            torch.autograd.grad((of * weight).sum(), given_states, retain_graph=True)[0] for of in (copies, expected)
        ]
        torch.testing.assert_close(*gradients)


@given(sequences)
def test_every_node_gets_its_state_back_and_one_place_its_gradient(given_tokens: list[list[int]]) -> None:
    tree = plant([np.array(tokens, np.int32) for tokens in given_tokens])
    rows = PackedRows.of(tree, CPU)
    states = torch.randn(len(tree.tokens_U), 3, dtype=torch.float64)
    assert rows.longest == int(rows.row_ends.diff().max())
    copies = rows.from_nodes(states)[0].requires_grad_()
    found = rows.to_nodes(copies)
    assert torch.equal(found, states)
    weights = torch.randn_like(found)
    (gradient,) = torch.autograd.grad((found * weights).sum(), copies)
    total = torch.zeros_like(states).index_add_(0, rows.nodes_R, gradient)
    torch.testing.assert_close(total, weights)
    assert int(gradient.abs().sum(1).count_nonzero()) == len(states)


def test_many_copies_in_bfloat16_are_added_up_in_fp32() -> None:
    prompt = [1] * 4
    tree = plant([np.array([*prompt, 2 + number], np.int32) for number in range(300)])
    rows = PackedRows.of(tree, CPU)
    states = torch.zeros(len(tree.tokens_U), 1, dtype=torch.bfloat16, requires_grad=True)
    rows.from_nodes(states)[0].sum().backward()
    assert states.grad is not None
    assert states.grad[: len(prompt)].flatten().tolist() == pytest.approx([300.0] * 4)  # bfloat16 sums stop at 256
