"""The network over a paged KV cache: matrix products by torch, the rest by a set of kernels (``kernel_set.py``).

Letters: T tokens, H hidden, V vocabulary. Tokens of any slots and positions lie side by side, without padding: one per
row in decode, whole prompts in prefill.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from tailrace.engines.native.architecture import Architecture
from tailrace.engines.native.paged.kernel_set import HeadShape, KernelSet, LayerPages, Places, QueryBlocks
from tailrace.engines.native.parameters import Parameters
from tailrace.engines.native.rope import rotation_table

Attend = Callable[[torch.Tensor, LayerPages], torch.Tensor]


class PagedModel:
    def __init__(
        self,
        shape: Architecture,
        parameters: Parameters,
        pools: list[LayerPages],
        kernels: KernelSet,
        *,
        max_length: int,
    ) -> None:
        self._shape, self._parameters, self._pools, self._kernels = shape, parameters, pools, kernels
        self._heads = HeadShape(
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            eps=shape.norm_eps,
        )
        table = rotation_table(shape.rope, max_length, parameters.embedding.device)
        self._rotations = torch.view_as_real(table).flatten(1).contiguous()

    def decode(self, tokens_T: torch.Tensor, places: Places) -> torch.Tensor:
        """Logits ``[T, V]``, after storing each token's keys and values."""

        def attend(qkv: torch.Tensor, pool: LayerPages) -> torch.Tensor:
            return self._kernels.attend_decode(qkv, pool, places, self._heads)

        x, update = self._layers(tokens_T, places, attend, is_prefill=False)
        return self._norm(x, update, self._parameters.norm) @ self._parameters.head

    def prefill(self, tokens_T: torch.Tensor, places: Places, blocks: QueryBlocks) -> None:
        """Store keys and values of these tokens. The last layer stops there."""

        def attend(qkv: torch.Tensor, pool: LayerPages) -> torch.Tensor:
            return self._kernels.attend_prefill(qkv, pool, blocks, self._heads)

        self._layers(tokens_T, places, attend, is_prefill=True)

    def _layers(
        self, tokens_T: torch.Tensor, places: Places, attend: Attend, *, is_prefill: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The residual stream and the last layer's contribution, which is not added yet."""
        x, update = F.embedding(tokens_T, self._parameters.embedding), None
        last = len(self._pools) - 1
        for index, (layer, pool) in enumerate(zip(self._parameters.layers, self._pools, strict=True)):
            qkv = _linear(self._norm(x, update, layer.attention_norm), layer.qkv, layer.qkv_bias)
            self._kernels.store_heads(qkv, pool, places, self._rotations, layer.qk_norm, self._heads)
            if is_prefill and index == last:
                break
            update = _linear(attend(qkv, pool), layer.output, layer.output_bias)
            gate_up = _linear(self._norm(x, update, layer.mlp_norm), layer.gate_up, layer.gate_up_bias)
            update = _linear(self._kernels.gated(gate_up), layer.down, layer.down_bias)
        return x, update

    def _norm(self, x: torch.Tensor, update: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor:
        return self._kernels.add_norm(x, update, weight, self._shape.norm_eps)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.mm(x, weight) if bias is None else torch.addmm(bias, x, weight)
