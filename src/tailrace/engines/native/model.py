"""The network in plain torch, for inference only: prefill fills the KV cache, decode gives logits.

Letters: N rows of a decode batch, M sequences of a prefill batch, C tokens of each, L key positions, V vocabulary.

A decode batch is the concatenation of the length classes' rows (``Span``), optionally followed by padding rows that
belong to nobody. Queries of one key/value head are treated as a short query sequence, so that grouped-query
attention never repeats keys or values. Prefill never computes logits and stops at the last layer's keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from tailrace.engines.native.architecture import Architecture
from tailrace.engines.native.parameters import LayerParameters, Parameters
from tailrace.engines.native.rope import rotation_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The rows ``start:stop`` of a decode batch and the class tensor that holds their keys and values."""

    start: int
    stop: int
    keys: Sequence[torch.Tensor]
    """Per layer ``[rows, kv_heads, L, head_dim]``."""
    values: Sequence[torch.Tensor]
    storage: Sequence[torch.Tensor]
    """Per layer, the whole class tensor as ``[positions, head_dim]``, for writing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Store the key and value of some tokens of a prefill batch in one class tensor."""

    tokens: torch.Tensor
    """Which tokens of the flattened ``[M * C]`` batch."""
    index: torch.Tensor
    """Where: positions of ``storage``, for each token its keys' heads, then its values' heads."""
    storage: Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Keys and values that a prefill batch sees besides its own."""

    storage: torch.Tensor
    """The class tensor ``[layers, 2, rows, kv_heads, capacity, head_dim]``."""
    rows: torch.Tensor
    num_keys: int
    mask_M1CL: torch.Tensor


class Model:
    def __init__(self, shape: Architecture, parameters: Parameters, *, max_length: int) -> None:
        self.shape = shape
        self.parameters = parameters
        device = parameters.embedding.device
        self._dtype = parameters.embedding.dtype
        self._rotations = rotation_table(shape.rope, max_length, device)
        if self._dtype == torch.float64:
            self._rotations = self._rotations.to(torch.complex128)

    def decode(
        self,
        tokens_N: torch.Tensor,
        positions_N: torch.Tensor,
        spans: Sequence[Span],
        write_indices: Sequence[torch.Tensor],
        masks: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """Logits ``[N, V]`` after storing each token's keys and values at its position."""
        x = F.embedding(tokens_N, self.parameters.embedding)
        rotations = self._rotations.index_select(0, positions_N).unsqueeze(1)
        for index, layer in enumerate(self.parameters.layers):
            qkv = self._project(layer, x, rotations)
            attended = self._attend(index, qkv, spans, write_indices, masks)
            self._add_projection(x, attended, layer.output, layer.output_bias)
            self._add_mlp(layer, x)
        return self._norm(x, self.parameters.norm) @ self.parameters.head

    def prefill(
        self, tokens_MC: torch.Tensor, positions_MC: torch.Tensor, writes: Sequence[Write], past: Past | None
    ) -> None:
        """Store keys and values of the tokens; without ``past`` every sequence starts at position 0."""
        x = F.embedding(tokens_MC.flatten(), self.parameters.embedding)
        rotations = self._rotations.index_select(0, positions_MC.flatten()).unsqueeze(1)
        last = len(self.parameters.layers) - 1
        for index, layer in enumerate(self.parameters.layers):
            qkv = self._project(layer, x, rotations)
            for write in writes:
                self._store(qkv.index_select(0, write.tokens), write.storage[index], write.index)
            if index == last:
                return
            attended = self._attend_prefill(index, qkv.unflatten(0, tokens_MC.shape), past)
            self._add_projection(x, attended, layer.output, layer.output_bias)
            self._add_mlp(layer, x)

    def _project(self, layer: LayerParameters, x: torch.Tensor, rotations: torch.Tensor) -> torch.Tensor:
        """Queries, keys (both normalised and rotated) and values of every token, side by side."""
        shape = self.shape
        qkv = _linear(self._norm(x, layer.attention_norm), layer.qkv, layer.qkv_bias)
        num_heads = shape.num_heads + shape.num_kv_heads
        qk = qkv[:, : num_heads * shape.head_dim].unflatten(1, (num_heads, shape.head_dim))
        if layer.qk_norm is not None:
            qk.copy_(F.rms_norm(qk, (shape.head_dim,), None, shape.norm_eps) * layer.qk_norm)
        if self._dtype in (torch.float32, torch.float64):
            torch.view_as_complex(qk.unflatten(2, (-1, 2))).mul_(rotations)
        else:
            pairs = torch.view_as_complex(qk.float().unflatten(2, (-1, 2)))
            qk.copy_(torch.view_as_real(pairs * rotations).flatten(2))
        return qkv

    def _attend(
        self,
        index: int,
        qkv: torch.Tensor,
        spans: Sequence[Span],
        write_indices: Sequence[torch.Tensor],
        masks: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        shape = self.shape
        grouped = (shape.num_kv_heads, shape.num_heads // shape.num_kv_heads, shape.head_dim)
        outputs = []
        for span, write_index, mask in zip(spans, write_indices, masks, strict=True):
            rows = qkv[span.start : span.stop]
            self._store(rows, span.storage[index], write_index)
            queries = rows[:, : shape.query_size].unflatten(1, grouped)
            attended = F.scaled_dot_product_attention(queries, span.keys[index], span.values[index], attn_mask=mask)
            outputs.append(attended.reshape(-1, shape.query_size))
        num_padding = qkv.shape[0] - spans[-1].stop
        if num_padding:
            outputs.append(qkv.new_zeros(num_padding, shape.query_size))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _attend_prefill(self, index: int, qkv_MC: torch.Tensor, past: Past | None) -> torch.Tensor:
        shape = self.shape
        sizes = [shape.query_size, shape.kv_size, shape.kv_size]
        queries, keys, values = (
            part.unflatten(2, (-1, shape.head_dim)).transpose(1, 2) for part in qkv_MC.split(sizes, dim=2)
        )
        is_grouped = shape.num_heads != shape.num_kv_heads
        if past is None:
            attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=is_grouped)
        else:
            keys, values = past.storage[index].index_select(1, past.rows)[:, :, :, : past.num_keys]
            attended = F.scaled_dot_product_attention(
                queries, keys, values, attn_mask=past.mask_M1CL, enable_gqa=is_grouped
            )
        return attended.transpose(1, 2).reshape(-1, shape.query_size)

    def _store(self, qkv: torch.Tensor, storage: torch.Tensor, index: torch.Tensor) -> None:
        storage.index_copy_(0, index, qkv[:, self.shape.query_size :].reshape(-1, self.shape.head_dim))

    def _add_mlp(self, layer: LayerParameters, x: torch.Tensor) -> None:
        gate_up = _linear(self._norm(x, layer.mlp_norm), layer.gate_up, layer.gate_up_bias)
        gate, up = gate_up.split(self.shape.intermediate_size, dim=1)
        self._add_projection(x, F.silu(gate).mul_(up), layer.down, layer.down_bias)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.shape.norm_eps)

    @staticmethod
    def _add_projection(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        x.addmm_(y, weight)
        if bias is not None:
            x.add_(bias)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.mm(x, weight) if bias is None else torch.addmm(bias, x, weight)
