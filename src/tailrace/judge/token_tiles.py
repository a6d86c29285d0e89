"""Lets modules that see each token alone (norms, MLPs) compute a long sequence a part at a time.

An MLP needs some times its inner width for each token, and a norm computes in fp32: for long sequences that is more
memory than attention needs. Where a sequence is cut depends on its own length alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

TILE = 2048
"""Tokens of a part: enough to keep a GPU busy."""


def tile_layer(layer: nn.Module) -> None:
    """Tile the norms and the MLP of a decoder layer."""
    for name, module in layer.named_modules():
        last = name.rpartition(".")[2]
        if last == "mlp" or last.endswith("norm"):
            _tile(module)


def _tile(module: nn.Module) -> None:
    whole = module.forward

    def forward(states: Tensor, *rest: Any, **named: Any) -> Any:
        """``states``: 1 x tokens x anything."""
        if states.shape[1] <= TILE or rest or named:
            return whole(states, *rest, **named)
        found = torch.empty_like(states)
        for start in range(0, states.shape[1], TILE):
            found[:, start : start + TILE] = whole(states[:, start : start + TILE])
        return found

    module.forward = forward
