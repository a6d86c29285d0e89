"""Experts that the rollout chose, as tensors for training.

U nodes of a tree of tokens, N response tokens, L layers with a router, K experts per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailrace.devices.upload import upload
from tailrace.store.segment import UNKNOWN_EXPERT, Routing


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRouting:
    """Experts that the rollout chose, as tensors. -1: unknown."""

    tokens_NLK: Tensor
    """Experts where each response token was predicted."""
    nodes_ULK: Tensor
    """The same by node. Responses that share a node may have gone to different experts there: the first one counts."""

    @classmethod
    def of(
        cls,
        routing: Sequence[Routing | None],
        sources: Sequence[NDArray[np.int64]],
        num_nodes: int,
        device: torch.device,
    ) -> RolloutRouting | None:
        """``routing``: the experts of each response. ``sources``: the nodes at which its tokens are predicted."""
        known = [experts for experts in routing if experts is not None]
        if not known:
            return None
        shape = known[0].shape[1:]
        nodes_ULK = np.full((num_nodes, *shape), UNKNOWN_EXPERT, np.int64)
        tokens = [np.full((len(nodes), *shape), UNKNOWN_EXPERT, np.int64) for nodes in sources]
        for experts, nodes, own in reversed(list(zip(routing, sources, tokens, strict=True))):
            if experts is not None:
                own[:] = experts
                is_known = experts[:, 0, 0] != UNKNOWN_EXPERT
                nodes_ULK[nodes[is_known]] = experts[is_known]
        return cls(
            tokens_NLK=upload(np.concatenate(tokens), device),
            nodes_ULK=upload(nodes_ULK, device),
        )
