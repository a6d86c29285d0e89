"""The network in plain torch, for inference only: prefill fills the KV cache, decode gives logits.

Letters: N rows of a decode batch, M sequences of a prefill batch, C tokens of each, L key positions, V vocabulary.

A decode batch is the concatenation of the length classes' rows (``RowSpan``), optionally followed by padding rows.
Queries that share a key/value head are treated as a short query sequence, so that grouped-query attention never repeats
keys or values. Prefill computes no logits and stops at the keys and values of the last layer.
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
class RowSpan:
    """The rows ``start:stop`` of a decode batch and the class tensor that holds their keys and values."""

    start: int
    stop: int
    keys: Sequence[torch.Tensor]
    """For each layer, a tensor ``[rows, kv_heads, L, head_dim]``."""
    values: Sequence[torch.Tensor]
    storage: Sequence[torch.Tensor]
    """For each layer, the whole class tensor as ``[positions, head_dim]``, for writing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanInputs:
    """The inputs of a span that change in each step."""

    span: RowSpan
    write_index: torch.Tensor
    """Where to write the heads of each row's new key and value."""
    mask: torch.Tensor
    """Attention mask ``[rows, 1, 1, L]``: 0 at positions that a row attends to, -inf elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Store the key and value of some tokens of a prefill batch in one class tensor."""

    tokens: torch.Tensor
    """Indices of these tokens in the flattened ``[M * C]`` batch."""
    index: torch.Tensor
    """Where to write them: positions of ``storage``, for each token the heads of its key, then those of its value."""
    storage: Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class PastKeys:
    """Keys and values of earlier positions that a prefill batch attends to."""

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

    def decode(self, tokens_N: torch.Tensor, positions_N: torch.Tensor, inputs: Sequence[SpanInputs]) -> torch.Tensor:
        """Logits ``[N, V]`` after storing each token's keys and values at its position."""
        x = F.embedding(tokens_N, self.parameters.embedding)
        rotations = self._rotations.index_select(0, positions_N).unsqueeze(1)
        work = _Workspace(self.shape, x)
        queries = [work.queries[item.span.start : item.span.stop] for item in inputs]
        new_kv = [work.new_kv[item.span.start : item.span.stop].flatten(0, 1) for item in inputs]
        for index, layer in enumerate(self.parameters.layers):
            self._project(layer, x, rotations, work)
            work.new_kv.copy_(work.keys_and_values)
            attended = []
            for item, query, kv in zip(inputs, queries, new_kv, strict=True):
                span = item.span
                span.storage[index].index_copy_(0, item.write_index, kv)
                output = F.scaled_dot_product_attention(query, span.keys[index], span.values[index], item.mask)
                attended.append(output.reshape(-1, self.shape.query_size))
            self._add_projection(x, _stack(attended, x.shape[0]), layer.output, layer.output_bias)
            self._add_mlp(layer, x, work)
        return self._norm(x, self.parameters.norm) @ self.parameters.head

    def prefill(
        self, tokens_MC: torch.Tensor, positions_MC: torch.Tensor, writes: Sequence[Write], past: PastKeys | None
    ) -> None:
        """Store keys and values of the tokens; without ``past`` every sequence starts at position 0."""
        x = F.embedding(tokens_MC.flatten(), self.parameters.embedding)
        rotations = self._rotations.index_select(0, positions_MC.flatten()).unsqueeze(1)
        work = _Workspace(self.shape, x)
        last = len(self.parameters.layers) - 1
        for index, layer in enumerate(self.parameters.layers):
            self._project(layer, x, rotations, work)
            for write in writes:
                kv = work.keys_and_values.index_select(0, write.tokens).flatten(0, 1)
                write.storage[index].index_copy_(0, write.index, kv)
            if index == last:
                return
            attended = self._attend_prefill(index, work.qkv.unflatten(0, tokens_MC.shape), past)
            self._add_projection(x, attended, layer.output, layer.output_bias)
            self._add_mlp(layer, x, work)

    def _project(self, layer: LayerParameters, x: torch.Tensor, rotations: torch.Tensor, work: _Workspace) -> None:
        """Queries, keys (both normalised and rotated) and values of every token, side by side in ``work.qkv``."""
        _linear(self._norm(x, layer.attention_norm), layer.qkv, layer.qkv_bias, out=work.qkv)
        heads = work.queries_and_keys
        if layer.qk_norm is not None:
            heads.copy_(F.rms_norm(heads, (self.shape.head_dim,), None, self.shape.norm_eps) * layer.qk_norm)
        if work.pairs is not None:
            work.pairs.mul_(rotations)
        else:
            pairs = torch.view_as_complex(heads.float().unflatten(2, (-1, 2)))
            heads.copy_(torch.view_as_real(pairs * rotations).flatten(2))

    def _attend_prefill(self, index: int, qkv_MC: torch.Tensor, past: PastKeys | None) -> torch.Tensor:
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

    def _add_mlp(self, layer: LayerParameters, x: torch.Tensor, work: _Workspace) -> None:
        _linear(self._norm(x, layer.mlp_norm), layer.gate_up, layer.gate_up_bias, out=work.gate_up)
        self._add_projection(x, F.silu(work.gate).mul_(work.up), layer.down, layer.down_bias)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (self.shape.hidden_size,), weight, self.shape.norm_eps)

    @staticmethod
    def _add_projection(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        # Not ``x.addmm_``: it sums into x block by block, and some models carry values of 20,000 in x,
        # beside which the small summands of every block would be rounded.
        x.add_(torch.mm(y, weight) if bias is None else torch.addmm(bias, y, weight))


class _Workspace:
    """Buffers for one layer's intermediate results and the views of them that every layer needs."""

    def __init__(self, shape: Architecture, x: torch.Tensor) -> None:
        num_tokens, head_dim = x.shape[0], shape.head_dim
        num_kv = 2 * shape.num_kv_heads
        self.qkv = x.new_empty(num_tokens, shape.query_size + num_kv * head_dim)
        heads = self.qkv.view(num_tokens, -1, head_dim)
        self.queries_and_keys = heads[:, : -shape.num_kv_heads]
        self.keys_and_values = heads[:, shape.num_heads :]
        self.queries = heads[:, : shape.num_heads].unflatten(1, (shape.num_kv_heads, -1))
        self.new_kv = x.new_empty(num_tokens, num_kv, head_dim)
        has_complex = x.dtype in (torch.float32, torch.float64)
        self.pairs = torch.view_as_complex(self.queries_and_keys.unflatten(2, (-1, 2))) if has_complex else None
        self.gate_up = x.new_empty(num_tokens, 2 * shape.intermediate_size)
        self.gate = self.gate_up[:, : shape.intermediate_size]
        self.up = self.gate_up[:, shape.intermediate_size :]


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, out: torch.Tensor) -> None:
    if bias is None:
        torch.mm(x, weight, out=out)
    else:
        torch.addmm(bias, x, weight, out=out)


def _stack(parts: list[torch.Tensor], num_rows: int) -> torch.Tensor:
    """Join the parts into one matrix of ``num_rows`` rows. Rows that no part covers are padding."""
    num_padding = num_rows - sum(part.shape[0] for part in parts)
    if num_padding:
        parts = [*parts, parts[0].new_zeros(num_padding, parts[0].shape[1])]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
