"""The engine's own weight tensors and the map from Hugging Face names to them.

Weights are stored the way decoding reads them fastest: query, key and value in one matrix, gate and up in one,
each as ``[in, out]``. Rotary dimensions are interleaved, so that one complex multiplication rotates a pair
(attention does not notice: queries and keys are permuted alike). ``fill`` writes in place and never reallocates,
after checking that every weight is there in the right shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tailrace.engines.native.architecture import Architecture


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
class Target:
    """Where one Hugging Face parameter goes."""

    view: torch.Tensor
    """A view of the engine's tensor in the shape of the source."""
    num_rotary_heads: int = 0
    """Heads along the first dimension whose halves are interleaved."""

    def write(self, source: torch.Tensor) -> None:
        if not self.num_rotary_heads:
            self.view.copy_(source)
            return
        heads, rest = self.num_rotary_heads, self.view.shape[1:]
        half = self.view.shape[0] // heads // 2
        halves = source.reshape(heads, 2, half, *rest).transpose(1, 2)
        self.view.unflatten(0, (heads, half, 2)).copy_(halves)


def allocate(shape: Architecture, *, device: torch.device, dtype: torch.dtype) -> Parameters:
    def empty(*sizes: int) -> torch.Tensor:
        return torch.empty(*sizes, device=device, dtype=dtype)

    embedding = empty(shape.vocab_size, shape.hidden_size)
    # CPU matrix products are several times faster with a contiguous [in, out] matrix; elsewhere a view will do.
    is_head_shared = shape.has_tied_embeddings and device.type != "cpu"
    return Parameters(
        embedding=embedding,
        layers=tuple(_allocate_layer(shape, device=device, dtype=dtype) for _ in range(shape.num_layers)),
        norm=empty(shape.hidden_size),
        head=embedding.t() if is_head_shared else empty(shape.hidden_size, shape.vocab_size),
    )


def _allocate_layer(shape: Architecture, *, device: torch.device, dtype: torch.dtype) -> LayerParameters:
    def empty(*sizes: int) -> torch.Tensor:
        return torch.empty(*sizes, device=device, dtype=dtype)

    hidden, inner, qkv_size = shape.hidden_size, shape.intermediate_size, shape.query_size + 2 * shape.kv_size
    return LayerParameters(
        attention_norm=empty(hidden),
        qkv=empty(hidden, qkv_size),
        qkv_bias=empty(qkv_size) if shape.has_qkv_bias else None,
        qk_norm=empty(shape.num_heads + shape.num_kv_heads, shape.head_dim) if shape.has_qk_norm else None,
        output=empty(shape.query_size, hidden),
        output_bias=empty(hidden) if shape.has_output_bias else None,
        mlp_norm=empty(hidden),
        gate_up=empty(hidden, 2 * inner),
        gate_up_bias=empty(2 * inner) if shape.has_mlp_bias else None,
        down=empty(inner, hidden),
        down_bias=empty(hidden) if shape.has_mlp_bias else None,
    )


def fill(parameters: Parameters, shape: Architecture, weights: Mapping[str, torch.Tensor]) -> None:
    """Copy ``weights`` (Hugging Face names) into ``parameters``: all of them, or, if one does not fit, none."""
    targets = list_targets(parameters, shape)
    missing = [name for name in targets if name not in weights]
    if missing:
        raise ValueError(f"{len(missing)} weights are missing, the first one is {missing[0]}")
    unknown = [name for name in weights if name not in targets and not _is_derived(name, shape)]
    if unknown:
        raise ValueError(f"{len(unknown)} weights are unknown to this architecture, the first one is {unknown[0]}")
    for name, (target, *_) in targets.items():
        given, wanted = tuple(weights[name].shape), tuple(target.view.shape)
        if given != wanted:
            raise ValueError(f"{name} has shape {given}, expected {wanted}")
    for name, copies in targets.items():
        source = weights[name]
        for target in copies:
            target.write(source)


def _is_derived(name: str, shape: Architecture) -> bool:
    """Entries of some checkpoints that carry nothing of their own."""
    return name.endswith("rotary_emb.inv_freq") or (shape.has_tied_embeddings and name == "lm_head.weight")


def list_targets(parameters: Parameters, shape: Architecture) -> dict[str, list[Target]]:
    """Every Hugging Face parameter name of this architecture and where its values go."""
    targets = {
        "model.embed_tokens.weight": [Target(view=parameters.embedding)],
        "model.norm.weight": [Target(view=parameters.norm)],
    }
    head = Target(view=parameters.head.t())
    if not shape.has_tied_embeddings:
        targets["lm_head.weight"] = [head]
    elif parameters.head.data_ptr() != parameters.embedding.data_ptr():
        targets["model.embed_tokens.weight"].append(head)
    for index, layer in enumerate(parameters.layers):
        prefix = f"model.layers.{index}."
        targets |= {prefix + name: [target] for name, target in _layer_targets(layer, shape).items()}
        targets |= {prefix + name: copies for name, copies in _head_norm_targets(layer, shape).items()}
    return targets


def _layer_targets(layer: LayerParameters, shape: Architecture) -> dict[str, Target]:
    inner = shape.intermediate_size
    targets = {
        "input_layernorm.weight": Target(view=layer.attention_norm),
        "post_attention_layernorm.weight": Target(view=layer.mlp_norm),
        "self_attn.o_proj.weight": Target(view=layer.output.t()),
        "mlp.gate_proj.weight": Target(view=layer.gate_up[:, :inner].t()),
        "mlp.up_proj.weight": Target(view=layer.gate_up[:, inner:].t()),
        "mlp.down_proj.weight": Target(view=layer.down.t()),
    }
    targets |= _projection_targets(layer.qkv.t(), "weight", shape)
    if layer.qkv_bias is not None:
        targets |= _projection_targets(layer.qkv_bias, "bias", shape)
    if layer.output_bias is not None:
        targets["self_attn.o_proj.bias"] = Target(view=layer.output_bias)
    if layer.gate_up_bias is not None and layer.down_bias is not None:
        targets["mlp.gate_proj.bias"] = Target(view=layer.gate_up_bias[:inner])
        targets["mlp.up_proj.bias"] = Target(view=layer.gate_up_bias[inner:])
        targets["mlp.down_proj.bias"] = Target(view=layer.down_bias)
    return targets


def _projection_targets(qkv: torch.Tensor, kind: str, shape: Architecture) -> dict[str, Target]:
    query, key, value = qkv.split([shape.query_size, shape.kv_size, shape.kv_size])
    return {
        f"self_attn.q_proj.{kind}": Target(view=query, num_rotary_heads=shape.num_heads),
        f"self_attn.k_proj.{kind}": Target(view=key, num_rotary_heads=shape.num_kv_heads),
        f"self_attn.v_proj.{kind}": Target(view=value),
    }


def _head_norm_targets(layer: LayerParameters, shape: Architecture) -> dict[str, list[Target]]:
    """Qwen3 has one norm for all query heads and one for all key heads; each head gets its copy."""
    if layer.qk_norm is None:
        return {}
    heads = [Target(view=norm, num_rotary_heads=1) for norm in layer.qk_norm]
    return {"self_attn.q_norm.weight": heads[: shape.num_heads], "self_attn.k_norm.weight": heads[shape.num_heads :]}
