"""The operations that the paged runner computes with, and the tensors they work on.

There are two sets: Triton kernels (``layer_kernels.py``, ``sampling_kernels.py``) and plain torch
(``reference_kernels.py``), for CPUs and to compare the kernels with.

Letters: T tokens (rows of a decode batch, or packed prompts), N rows, D dimensions of a head, V vocabulary. A row whose
position is -1 is empty: nothing is stored for it, and what is computed for it means nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from tailrace.engines.native.paged.slot_state import SlotState

QUERY_BLOCK = 64
"""Most tokens of one block of queries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPages:
    """The KV cache of one layer and the pages of each slot."""

    keys: torch.Tensor
    values: torch.Tensor
    blocks: torch.Tensor

    @property
    def page_size(self) -> int:
        return int(self.keys.shape[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where each of T tokens is: its slot and its position. Position -1: an empty row."""

    slots: torch.Tensor
    positions: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryBlocks:
    """Prefill attention in blocks of queries of one sequence. One entry per block."""

    first_token: torch.Tensor
    """Index of the block's first token in the pack."""
    num_tokens: torch.Tensor
    first_position: torch.Tensor
    slot: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBuffers:
    """What the rows of a decode batch hold. The addresses stay the same, because graphs keep them."""

    slots: torch.Tensor
    """``[N]``: the slot of each row, -1 for none. Written by the host."""
    positions: torch.Tensor
    tokens: torch.Tensor
    uniforms: torch.Tensor
    logprobs: torch.Tensor
    behaviour_logprobs: torch.Tensor
    results: torch.Tensor
    """``[3 * steps + 1, N]``: tokens, log-probs and full log-probs (their bits) of each step; last, the number of
    tokens that each row gained."""

    @classmethod
    def allocate(cls, num_rows: int, num_steps: int, device: torch.device) -> RowBuffers:
        def empty(*sizes: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(*sizes, device=device, dtype=dtype)

        return cls(
            slots=empty(num_rows, dtype=torch.int32).fill_(-1),
            positions=empty(num_rows, dtype=torch.int32),
            tokens=empty(num_rows, dtype=torch.int64),
            uniforms=empty(num_rows, dtype=torch.float32),
            logprobs=empty(num_rows, dtype=torch.float32),
            behaviour_logprobs=empty(num_rows, dtype=torch.float32),
            results=empty(3 * num_steps + 1, num_rows, dtype=torch.int32),
        )


class Prepare(Protocol):
    def __call__(self, rows: RowBuffers, state: SlotState, num_rows: int, *, is_first: bool) -> None: ...


class Advance(Protocol):
    def __call__(
        self, rows: RowBuffers, state: SlotState, num_rows: int, *, step: int, num_steps: int, is_truncated: bool
    ) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSet:
    add_norm: Callable[[torch.Tensor, torch.Tensor | None, torch.Tensor, float], torch.Tensor]
    """Add the second tensor to the first in place, and return the RMS norm of the sum."""
    gated: Callable[[torch.Tensor], torch.Tensor]
    """``silu(gate) * up`` of two halves that lie side by side."""
    store_heads: Callable[[torch.Tensor, LayerPages, Places, torch.Tensor, torch.Tensor | None, HeadShape], None]
    """Norm (where the model has one) and rotate queries and keys. Queries stay where they are, keys and values go to
    pages. The fourth argument: for each position, cosine and sine of every pair of neighbouring dimensions."""
    attend_decode: Callable[[torch.Tensor, LayerPages, Places, HeadShape], torch.Tensor]
    """Attention of one new token per row over all positions up to its own."""
    attend_prefill: Callable[[torch.Tensor, LayerPages, QueryBlocks, HeadShape], torch.Tensor]
    """Causal attention of packed tokens over what their slots hold, themselves included."""
    prepare: Prepare
    """Read the slot of each row: its position, its newest token, and the random number of its next token."""
    pick: Callable[[torch.Tensor, RowBuffers, SlotState], None]
    """Sample one token for each row, without truncation."""
    advance: Advance
    """Write down each row's token, and continue or end its slot."""
