"""What the engine asks of the part that is on the device: weights, KV cache, and the computation.

There are two. ``PlainRunner`` computes one token per call in plain torch. ``PagedRunner`` computes several, on a GPU as
one CUDA graph of Triton kernels; its results arrive one call later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from tailrace.engines.native.step_plan import Plan

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Gained:
    """The slots that gained tokens, and how many each. The tokens are in the slot table, the lengths in the batcher."""

    slots: NDArray[np.int64]
    counts: NDArray[np.int64]


NOTHING = Gained(slots=np.empty(0, np.int64), counts=np.empty(0, np.int64))


class Runner(Protocol):
    def fill(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Copy these weights in place."""

    def carry_out(self, plan: Plan) -> None:
        """Make room, prefill chunks and copy shared prompts, as the plan says."""

    def decode(self) -> Gained:
        """Continue every ready slot."""

    def drain(self) -> Gained:
        """Wait for tokens that are being computed, and start nothing."""

    def release(self) -> None:
        """Give back the memory of weights and KV cache. Nobody may need the results of a replay that still runs."""

    def restore(self) -> None:
        """Take memory for weights and KV cache again. Weights are undefined until ``fill``, the KV cache is empty."""
