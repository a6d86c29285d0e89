"""The rows of a prefix tree side by side, without padding, and how states travel between nodes and rows.

U nodes, R places in rows, W width of a state.

A node that is on several rows has a copy in each, and its gradient is the sum over its copies. Where these are is
known, so the sum needs no sorting (as the gradient of an embedding does) and is taken in a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tailrace.algorithms.prefix_tree import PrefixTree
from tailrace.devices.upload import upload


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    nodes_R: Tensor
    """The node at each place."""
    places_R: Tensor
    """All places, those of the first node before those of the second, and so on."""
    starts: Tensor
    """Where each node's part of ``places_R`` starts, then where the last one ends: U + 1."""
    place_U: Tensor
    """One place of each node."""
    row_ends: Tensor
    """0, then the place at which each row ends."""
    longest: int
    """Length of the longest row."""

    @classmethod
    def of(cls, tree: PrefixTree, device: torch.device) -> PackedRows:
        paths = [tree.paths[leaf] for leaf in tree.leaves]
        lengths, nodes_R = [len(path) for path in paths], np.concatenate(paths)
        places_R = np.argsort(nodes_R, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(nodes_R))])
        tensor = partial(upload, device=device)
        return cls(
            nodes_R=tensor(nodes_R),
            places_R=tensor(places_R),
            starts=tensor(starts),
            place_U=tensor(places_R[starts[:-1]]),
            row_ends=tensor(np.cumsum([0, *lengths], dtype=np.int32)),
            longest=max(lengths),
        )

    def from_nodes(self, *states_UW: Tensor) -> tuple[Tensor, ...]:
        """The states of the node at each place, R x W. States may differ in width."""
        found: tuple[Tensor, ...] = _FromNodes.apply(self.nodes_R, self.places_R, self.starts, *states_UW)
        return found

    def to_nodes(self, states_RW: Tensor) -> Tensor:
        """The state of each node, U x W, from one of its places."""
        found: Tensor = _ToNodes.apply(states_RW, self.place_U)
        return found


class _FromNodes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, nodes_R: Tensor, places_R: Tensor, starts: Tensor, *states_UW: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(places_R, starts)
        return tuple(states.index_select(0, nodes_R) for states in states_UW)

    @staticmethod
    def backward(ctx: Any, *gradients_RW: Tensor) -> tuple[Tensor | None, ...]:
        places_R, starts = ctx.saved_tensors
        widths = [gradient.shape[1] for gradient in gradients_RW]
        copies_RW = torch.cat(gradients_RW, dim=1).index_select(0, places_R)
        # Copies are added up in at least fp32: sums of bfloat16 lose too much.
        exact_RW = copies_RW.to(torch.promote_types(copies_RW.dtype, torch.float32))
        # unsafe: the starts are right, and a check of them would make the CPU wait for the GPU.
        sums_UW = torch.segment_reduce(exact_RW, "sum", offsets=starts, axis=0, unsafe=True)
        return None, None, None, *sums_UW.to(copies_RW.dtype).split(widths, dim=1)


class _ToNodes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states_RW: Tensor, place_U: Tensor) -> Tensor:
        ctx.save_for_backward(place_U)
        ctx.num_places = len(states_RW)
        return states_RW.index_select(0, place_U)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient_UW,), (place_U,) = gradients, ctx.saved_tensors
        gradient_RW = gradient_UW.new_zeros(ctx.num_places, gradient_UW.shape[1])
        return gradient_RW.index_copy_(0, place_U, gradient_UW), None
