"""The network that a checkpoint's ``config.json`` describes, for the model families that the native engine runs.

A model that the engine cannot run exactly is refused here, before any weight is read. Importing this file does not
import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.engines.contract import Unsupported
from tailrace.store.model_config import not_a_config, read_model_config
from tailrace.store.tensor_file import tensor_names

FAMILIES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}
ROPE_VARIANTS = ("default", "linear", "dynamic", "llama3", "yarn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    variant: str
    theta: float
    head_dim: int
    max_positions: int
    """``max_position_embeddings`` of the config."""
    parameters: Mapping[str, Any]
    """Settings that only this variant has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope: Rope
    has_tied_embeddings: bool
    has_qkv_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool
    has_qk_norm: bool
    sliding_window: int | None
    """Width of the narrowest attention window; None if every layer attends to all tokens."""

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    def check_length(self, max_length: int) -> None:
        """``Unsupported`` if the engine cannot compute sequences of this length."""
        if self.rope.variant == "dynamic" and max_length > self.rope.max_positions:
            raise Unsupported(
                f"the native engine supports dynamic rope up to max_position_embeddings ({self.rope.max_positions}),"
                f" but prompt and response may have {max_length} tokens"
            )
        if self.sliding_window is not None and max_length > self.sliding_window:
            raise Unsupported(
                f"the native engine supports sliding-window attention up to its window of {self.sliding_window} tokens,"
                f" but max_length is {max_length}"
            )


def weight_shapes(shape: Architecture) -> dict[str, tuple[int, ...]]:
    """Shapes of all weights of the network, by Hugging Face name, in the order in which the network uses them."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    query, key = shape.query_size, shape.kv_size
    linear = {
        "self_attn.q_proj": ((query, hidden), shape.has_qkv_bias),
        "self_attn.k_proj": ((key, hidden), shape.has_qkv_bias),
        "self_attn.v_proj": ((key, hidden), shape.has_qkv_bias),
        "self_attn.o_proj": ((hidden, query), shape.has_output_bias),
        "mlp.gate_proj": ((inner, hidden), shape.has_mlp_bias),
        "mlp.up_proj": ((inner, hidden), shape.has_mlp_bias),
        "mlp.down_proj": ((hidden, inner), shape.has_mlp_bias),
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if shape.has_qk_norm:
        norms |= {"self_attn.q_norm": shape.head_dim, "self_attn.k_norm": shape.head_dim}
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocab_size, hidden)}
    for index in range(shape.num_layers):
        prefix = f"model.layers.{index}."
        found |= {f"{prefix}{name}.weight": (size,) for name, size in norms.items()}
        found |= {f"{prefix}{name}.weight": sizes for name, (sizes, _) in linear.items()}
        found |= {f"{prefix}{name}.bias": sizes[:1] for name, (sizes, has_bias) in linear.items() if has_bias}
    found["model.norm.weight"] = (hidden,)
    if not shape.has_tied_embeddings:
        found["lm_head.weight"] = (shape.vocab_size, hidden)
    return found


def check_checkpoint(checkpoint: Path, max_length: int) -> None:
    """``Unsupported`` if the engine cannot run this model, ``ValueError`` if its files lack a weight.

    ``max_length``: most tokens of a prompt with its response. No weight is read.
    """
    architecture = read_architecture(checkpoint)
    architecture.check_length(max_length)
    held = tensor_names(checkpoint)
    for name in weight_shapes(architecture):
        # A network that was saved without its head omits `model.` from the names; the trainer loads those too.
        if name not in held and name.removeprefix("model.") not in held:
            raise ValueError(
                f"the weights of model '{checkpoint}' cannot be used: they lack {name}, which a model of this"
                " config.json needs; fetch them again"
            )


def read_architecture(checkpoint: Path) -> Architecture:
    config = read_model_config(checkpoint)
    try:
        return parse_architecture(config)
    except (KeyError, TypeError, AttributeError) as error:
        raise not_a_config(checkpoint, f"it lacks {error}" if isinstance(error, KeyError) else str(error)) from error


def parse_architecture(config: Mapping[str, Any]) -> Architecture:
    family = _family(config)
    _refuse_unsupported(config)
    num_heads = int(config["num_attention_heads"])
    hidden_size = int(config["hidden_size"])
    head_dim = int(config.get("head_dim") or (128 if family == "qwen3" else hidden_size // num_heads))
    has_attention_bias = bool(config.get("attention_bias", False))
    return Architecture(
        vocab_size=int(config["vocab_size"]),
        hidden_size=hidden_size,
        intermediate_size=int(config["intermediate_size"]),
        num_layers=int(config["num_hidden_layers"]),
        num_heads=num_heads,
        num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
        head_dim=head_dim,
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=_rope(config, head_dim),
        has_tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        has_qkv_bias=family == "qwen2" or has_attention_bias,
        has_output_bias=family != "qwen2" and has_attention_bias,
        has_mlp_bias=family == "llama" and bool(config.get("mlp_bias", False)),
        has_qk_norm=family == "qwen3",
        sliding_window=_sliding_window(config),
    )


def _family(config: Mapping[str, Any]) -> str:
    names = config.get("architectures") or []
    name = names[0] if names else str(config.get("model_type"))
    if name in FAMILIES:
        return FAMILIES[name]
    if not names and name in FAMILIES.values():
        return name
    raise Unsupported(f"the native engine does not support {name}; choose a model of {', '.join(FAMILIES)}")


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise Unsupported(f"the native engine supports the silu activation only, not {activation!r}")
    if config.get("quantization_config"):
        raise Unsupported("the native engine does not run quantized checkpoints; remove quantization_config")


def _sliding_window(config: Mapping[str, Any]) -> int | None:
    if not config.get("use_sliding_window", False) or not config.get("sliding_window"):
        return None
    layer_types = config.get("layer_types")
    if layer_types is not None and "sliding_attention" not in layer_types:
        return None
    return int(config["sliding_window"])


def _rope(config: Mapping[str, Any], head_dim: int) -> Rope:
    """Read ``rope_parameters``, or ``rope_theta`` and ``rope_scaling``, which older configs have."""
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    variant = parameters.get("rope_type") or parameters.get("type") or "default"
    if variant not in ROPE_VARIANTS:
        raise Unsupported(
            f"the native engine does not support the rope variant {variant!r}; it supports {', '.join(ROPE_VARIANTS)}"
        )
    partial = parameters.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    if partial != 1.0:
        raise Unsupported(
            f"the native engine does not support partial rotary embeddings: partial_rotary_factor is {partial}"
        )
    theta = parameters.get("rope_theta") or config.get("rope_theta") or 10000.0
    return Rope(
        variant=variant,
        theta=float(theta),
        head_dim=head_dim,
        max_positions=int(config.get("max_position_embeddings") or 2048),
        parameters=parameters,
    )
