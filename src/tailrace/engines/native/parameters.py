"""The engine's own weight tensors, and where in them the tensors of its layout (``layout.py``) go.

Weights are stored in the order that decoding reads fastest: fused as the layout says, each as ``[in, out]``. Rotary
dimensions are interleaved, so that one complex multiplication rotates a pair; queries and keys are permuted alike, so
attention gives the same result. ``fill`` first checks that every weight is there in the right shape, then writes in
place and never reallocates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tailrace.devices.releasable_memory import ReleasableMemory
from tailrace.engines.native.architecture import Architecture, weight_shapes
from tailrace.engines.native.layout import engine_layout


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParameters:
    attention_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    qk_norm: torch.Tensor | None
    """``[heads + kv_heads, head_dim]``"""
    output: torch.Tensor
    output_bias: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    embedding: torch.Tensor
    layers: tuple[LayerParameters, ...]
    norm: torch.Tensor
    head: torch.Tensor
    """``[hidden, vocab]``"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where one tensor of the engine's layout goes."""

    views: tuple[torch.Tensor, ...]
    """Views of the engine's tensors, in the shape of the layout's tensor; several if the engine keeps copies."""
    num_rotary_rows: int = 0
    """Number of leading rows that belong to heads whose halves are interleaved."""
    head_dim: int = 0

    def write(self, offset: tuple[int, ...], source: torch.Tensor) -> None:
        place = tuple(slice(at, at + size) for at, size in zip(offset, source.shape, strict=True))
        half = self.head_dim // 2
        for view in self.views:
            if offset[0] < self.num_rotary_rows:
                halves = source.unflatten(0, (-1, 2, half)).transpose(1, 2)
                view[place].unflatten(0, (-1, half, 2)).copy_(halves)
            else:
                view[place].copy_(source)


def allocate(shape: Architecture, memory: ReleasableMemory, *, dtype: torch.dtype) -> Parameters:
    embedding = memory.empty(shape.vocab_size, shape.hidden_size, dtype=dtype)
    # The head of tied embeddings can be a view of them, except on a CPU.
    is_head_shared = shape.has_tied_embeddings and memory.device.type != "cpu"
    return Parameters(
        embedding=embedding,
        layers=tuple(_allocate_layer(shape, memory, dtype) for _ in range(shape.num_layers)),
        norm=memory.empty(shape.hidden_size, dtype=dtype),
        head=embedding.t() if is_head_shared else _matrix(shape.hidden_size, shape.vocab_size, memory, dtype),
    )


def _matrix(rows: int, columns: int, memory: ReleasableMemory, dtype: torch.dtype) -> torch.Tensor:
    """CPU products are several times faster with a contiguous [in, out] matrix, GPU products with [out, in]."""
    if memory.device.type == "cpu":
        return memory.empty(rows, columns, dtype=dtype)
    return memory.empty(columns, rows, dtype=dtype).t()


def _allocate_layer(shape: Architecture, memory: ReleasableMemory, dtype: torch.dtype) -> LayerParameters:
    def empty(*sizes: int) -> torch.Tensor:
        return memory.empty(*sizes, dtype=dtype)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return _matrix(rows, columns, memory, dtype)

    hidden, inner, qkv_size = shape.hidden_size, shape.intermediate_size, shape.query_size + 2 * shape.kv_size
    return LayerParameters(
        attention_norm=empty(hidden),
        qkv=matrix(hidden, qkv_size),
        qkv_bias=empty(qkv_size) if shape.has_qkv_bias else None,
        qk_norm=empty(shape.num_heads + shape.num_kv_heads, shape.head_dim) if shape.has_qk_norm else None,
        output=matrix(shape.query_size, hidden),
        output_bias=empty(hidden) if shape.has_output_bias else None,
        mlp_norm=empty(hidden),
        gate_up=matrix(hidden, 2 * inner),
        gate_up_bias=empty(2 * inner) if shape.has_mlp_bias else None,
        down=matrix(inner, hidden),
        down_bias=empty(hidden) if shape.has_mlp_bias else None,
    )


class Filling:
    """Copies weights, given by Hugging Face name, into an engine's parameters. The places are computed once."""

    def __init__(self, parameters: Parameters, shape: Architecture) -> None:
        self._shape, self._wanted = shape, weight_shapes(shape)
        destinations = list_destinations(parameters, shape)
        pieces = engine_layout(shape, str(parameters.norm.dtype).removeprefix("torch.")).pieces
        self._places = [(destinations[piece.tensor], piece.offset, piece.parameter) for piece in pieces]

    def fill(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Copy all weights. If one does not fit, an error is raised and nothing is copied."""
        wanted = self._wanted
        missing = [name for name in wanted if name not in weights]
        if missing:
            raise ValueError(f"{len(missing)} weights are missing, the first one is {missing[0]}")
        unknown = [name for name in weights if name not in wanted and not _is_derived(name, self._shape)]
        if unknown:
            raise ValueError(f"{len(unknown)} weights are unknown to this architecture, the first one is {unknown[0]}")
        for name, sizes in wanted.items():
            if (given := tuple(weights[name].shape)) != sizes:
                raise ValueError(f"{name} has shape {given}, expected {sizes}")
        for destination, offset, parameter in self._places:
            destination.write(offset, weights[parameter])


def _is_derived(name: str, shape: Architecture) -> bool:
    """Whether the engine can ignore this entry of a checkpoint: it is computed, or equal to another weight."""
    return name.endswith("rotary_emb.inv_freq") or (shape.has_tied_embeddings and name == "lm_head.weight")


def list_destinations(parameters: Parameters, shape: Architecture) -> dict[str, Destination]:
    """Where the values of each tensor of the engine's layout go."""
    head = parameters.head.t()
    embeddings = [parameters.embedding]
    if shape.has_tied_embeddings and parameters.head.data_ptr() != parameters.embedding.data_ptr():
        embeddings.append(head)
    found = {
        "model.embed_tokens.weight": Destination(views=tuple(embeddings)),
        "model.norm.weight": Destination(views=(parameters.norm,)),
    }
    if not shape.has_tied_embeddings:
        found["lm_head.weight"] = Destination(views=(head,))
    for index, layer in enumerate(parameters.layers):
        for name, destination in _layer_destinations(layer, shape).items():
            found[f"model.layers.{index}.{name}"] = destination
    return found


def _layer_destinations(layer: LayerParameters, shape: Architecture) -> dict[str, Destination]:
    plain = {
        "input_layernorm.weight": layer.attention_norm,
        "post_attention_layernorm.weight": layer.mlp_norm,
        "self_attn.o_proj.weight": layer.output.t(),
        "self_attn.o_proj.bias": layer.output_bias,
        "mlp.gate_up_proj.weight": layer.gate_up.t(),
        "mlp.gate_up_proj.bias": layer.gate_up_bias,
        "mlp.down_proj.weight": layer.down.t(),
        "mlp.down_proj.bias": layer.down_bias,
    }
    found = {name: Destination(views=(view,)) for name, view in plain.items() if view is not None}
    num_rotary_rows = shape.query_size + shape.kv_size
    for name, view in {"weight": layer.qkv.t(), "bias": layer.qkv_bias}.items():
        if view is not None:
            found[f"self_attn.qkv_proj.{name}"] = Destination(
                views=(view,), num_rotary_rows=num_rotary_rows, head_dim=shape.head_dim
            )
    return found | _head_norm_destinations(layer, shape)


def _head_norm_destinations(layer: LayerParameters, shape: Architecture) -> dict[str, Destination]:
    """Qwen3 has one norm for all query heads and one for all key heads; each head gets its copy."""
    if layer.qk_norm is None:
        return {}
    copies = layer.qk_norm.unbind()
    return {
        f"self_attn.{name}.weight": Destination(views=views, num_rotary_rows=shape.head_dim, head_dim=shape.head_dim)
        for name, views in {"q_norm": copies[: shape.num_heads], "k_norm": copies[shape.num_heads :]}.items()
    }
