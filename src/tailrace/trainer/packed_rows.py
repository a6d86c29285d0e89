"""The rows of a prefix tree side by side, without padding, and how states travel between nodes and rows.

U nodes, R places in rows, S nodes that are on several rows, C copies, W width of a state.

A node that is on several rows has a copy in each. The gradient of a node is the sum over its copies. Few nodes have
more than one, and where they are is known, so the sum needs no sorting (as the gradient of an embedding does) and is
taken in a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailrace.algorithms.prefix_tree import PrefixTree


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    nodes_R: Tensor
    """The node at each place."""
    place_U: Tensor
    """One place of each node."""
    shared_S: Tensor
    """Nodes with more than one place."""
    copies_SC: Tensor
    """Their places. Rows with fewer than C places repeat one."""
    is_copy_SC: Tensor
    """False where ``copies_SC`` repeats a place."""
    row_ends: Tensor
    """0, then the place at which each row ends."""
    longest: int
    """Length of the longest row."""

    @classmethod
    def of(cls, tree: PrefixTree, device: torch.device) -> PackedRows:
        paths = [tree.paths[leaf] for leaf in tree.leaves]
        lengths, nodes_R = [len(path) for path in paths], np.concatenate(paths)
        shared_S, copies_SC, is_copy_SC = _copies(nodes_R, len(tree.tokens_U))
        place_U = np.empty(len(tree.tokens_U), np.int64)
        place_U[nodes_R] = np.arange(len(nodes_R))

        def tensor(array: NDArray[np.generic]) -> Tensor:
            return torch.from_numpy(array).to(device, non_blocking=True)

        return cls(
            nodes_R=tensor(nodes_R),
            place_U=tensor(place_U),
            shared_S=tensor(shared_S),
            copies_SC=tensor(copies_SC),
            is_copy_SC=tensor(is_copy_SC),
            row_ends=tensor(np.cumsum([0, *lengths], dtype=np.int32)),
            longest=max(lengths),
        )

    def from_nodes(self, states_UW: Tensor) -> Tensor:
        """The state of the node at each place, R x W."""
        found: Tensor = _FromNodes.apply(states_UW, self)
        return found

    def to_nodes(self, states_RW: Tensor) -> Tensor:
        """The state of each node, U x W, from one of its places."""
        found: Tensor = _ToNodes.apply(states_RW, self)
        return found


def _copies(nodes_R: NDArray[np.int64], num_nodes: int) -> tuple[NDArray[np.generic], ...]:
    """Nodes with several places, their places, and which of those count."""
    num_copies_U = np.bincount(nodes_R, minlength=num_nodes)
    shared_S = np.flatnonzero(num_copies_U > 1)
    num_copies_S = num_copies_U[shared_S]
    by_node = np.argsort(nodes_R, kind="stable")
    first_S = np.cumsum(num_copies_U)[shared_S] - num_copies_S
    column_C = np.arange(num_copies_S.max(initial=1))
    is_copy_SC = column_C < num_copies_S[:, None]
    copies_SC = by_node[first_S[:, None] + np.where(is_copy_SC, column_C, 0)]
    return shared_S, copies_SC, is_copy_SC


class _FromNodes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states_UW: Tensor, rows: PackedRows) -> Tensor:
        ctx.rows = rows
        return states_UW.index_select(0, rows.nodes_R)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        rows, (gradient_RW,) = ctx.rows, gradients
        gradient_UW = gradient_RW.index_select(0, rows.place_U)
        if len(rows.shared_S):
            copies_SCW = gradient_RW[rows.copies_SC].masked_fill(~rows.is_copy_SC[..., None], 0.0)
            # Copies are added up in at least fp32: sums of bfloat16 lose too much.
            at_least = torch.promote_types(gradient_RW.dtype, torch.float32)
            gradient_UW.index_copy_(0, rows.shared_S, copies_SCW.sum(1, dtype=at_least).to(gradient_RW.dtype))
        return gradient_UW, None


class _ToNodes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states_RW: Tensor, rows: PackedRows) -> Tensor:
        ctx.rows, ctx.num_places = rows, len(states_RW)
        return states_RW.index_select(0, rows.place_U)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient_UW,) = gradients
        gradient_RW = gradient_UW.new_zeros(ctx.num_places, gradient_UW.shape[1])
        return gradient_RW.index_copy_(0, ctx.rows.place_U, gradient_UW), None
