"""The rows of a prefix tree side by side, without padding, and how states travel between nodes and rows.

U nodes, R places in rows, S nodes that are on several rows, C copies, W width of a state.

A node that is on several rows has a copy in each. The gradient of a node is the sum over its copies. Where these are is
known, so the sum needs no sorting (as the gradient of an embedding does) and is taken in a fixed order. Nodes with
about as many copies are summed together: a token that all prompts begin with has as many copies as there are rows, and
the tokens of one prompt as many as it has responses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailrace.algorithms.prefix_tree import PrefixTree
from tailrace.devices.upload import upload


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Nodes with more than C / 2 and at most C places."""

    nodes_S: Tensor
    places_SC: Tensor
    """Their places. Nodes with fewer than C places repeat one."""
    is_extra_SC: Tensor
    """True where ``places_SC`` repeats a place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    nodes_R: Tensor
    """The node at each place."""
    place_U: Tensor
    """One place of each node."""
    copies: tuple[Copies, ...]
    """Nodes with more than one place."""
    row_ends: Tensor
    """0, then the place at which each row ends."""
    longest: int
    """Length of the longest row."""

    @classmethod
    def of(cls, tree: PrefixTree, device: torch.device) -> PackedRows:
        paths = [tree.paths[leaf] for leaf in tree.leaves]
        lengths, nodes_R = [len(path) for path in paths], np.concatenate(paths)
        place_U = np.empty(len(tree.tokens_U), np.int64)
        place_U[nodes_R] = np.arange(len(nodes_R))

        tensor = partial(upload, device=device)

        return cls(
            nodes_R=tensor(nodes_R),
            place_U=tensor(place_U),
            copies=tuple(
                Copies(nodes_S=tensor(nodes), places_SC=tensor(places), is_extra_SC=tensor(is_extra))
                for nodes, places, is_extra in _copies(nodes_R, len(tree.tokens_U))
            ),
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


def _copies(nodes_R: NDArray[np.int64], num_nodes: int) -> Iterator[tuple[NDArray[np.generic], ...]]:
    """Nodes with several places, their places, and which of those do not count; by the number of places, with at most
    twice as many entries as there are places."""
    num_places_U = np.bincount(nodes_R, minlength=num_nodes)
    by_node_R = np.argsort(nodes_R, kind="stable")
    first_U = np.cumsum(num_places_U) - num_places_U
    most = 2
    while most < 2 * num_places_U.max():
        nodes_S = np.flatnonzero((num_places_U > most // 2) & (num_places_U <= most))
        if len(nodes_S):
            column_C = np.arange(num_places_U[nodes_S].max())
            is_extra_SC = column_C >= num_places_U[nodes_S, None]
            yield nodes_S, by_node_R[first_U[nodes_S, None] + np.where(is_extra_SC, 0, column_C)], is_extra_SC
        most *= 2


class _FromNodes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states_UW: Tensor, rows: PackedRows) -> Tensor:
        ctx.rows = rows
        return states_UW.index_select(0, rows.nodes_R)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        rows, (gradient_RW,) = ctx.rows, gradients
        gradient_UW = gradient_RW.index_select(0, rows.place_U)
        # Copies are added up in at least fp32: sums of bfloat16 lose too much.
        at_least = torch.promote_types(gradient_RW.dtype, torch.float32)
        for copies in rows.copies:
            copies_SCW = gradient_RW[copies.places_SC].masked_fill_(copies.is_extra_SC[..., None], 0.0)
            gradient_UW.index_copy_(0, copies.nodes_S, copies_SCW.sum(1, dtype=at_least).to(gradient_RW.dtype))
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
