"""Small models for the sharding table, with any number of heads, biases and a norm, and the schemes to divide them."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from tailrace.weights.sharding.table import Heads, Parameter, Scheme, Split

DTYPES = {"float32": torch.int32, "bfloat16": torch.int16}
"""For each dtype an integer type of the same size, to compare all bits, also those of a NaN."""


def parameters(heads: Heads, *, dtype: str = "float32") -> list[Parameter]:
    inner, hidden, vocab = 5, 3, 7
    query, key = heads.num_query * heads.size, heads.num_kv * heads.size
    shapes = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.layers.0.input_layernorm.weight": (hidden,),
        "model.layers.0.mlp.up_proj.weight": (inner, hidden),
        "model.layers.0.mlp.gate_proj.weight": (inner, hidden),
        "model.layers.0.mlp.down_proj.weight": (hidden, inner),
        "model.layers.0.self_attn.v_proj.weight": (key, hidden),
        "model.layers.0.self_attn.k_proj.weight": (key, hidden),
        "model.layers.0.self_attn.q_proj.weight": (query, hidden),
        "model.layers.0.self_attn.q_proj.bias": (query,),
        "model.layers.0.self_attn.k_proj.bias": (key,),
        "model.layers.0.self_attn.v_proj.bias": (key,),
        "model.layers.0.self_attn.o_proj.weight": (hidden, query),
        "model.layers.0.self_attn.o_proj.bias": (hidden,),
        "scale": (),
    }
    return [Parameter(name=name, shape=shape, dtype=dtype) for name, shape in shapes.items()]


def values(model: list[Parameter], seed: int = 0) -> dict[str, Tensor]:
    """Make weights of random bits."""
    generator = torch.Generator().manual_seed(seed)
    return {
        p.name: torch.randint(-(2**15), 2**15, p.shape, generator=generator, dtype=DTYPES[p.dtype]).view(
            getattr(torch, p.dtype)
        )
        for p in model
    }


def are_equal(one: Tensor, other: Tensor) -> bool:
    bits = DTYPES[str(one.dtype).removeprefix("torch.")]
    return one.dtype == other.dtype and torch.equal(one.view(bits), other.view(bits))


HEADS = st.builds(
    lambda num_kv, per_group, size: Heads(num_query=num_kv * per_group, num_kv=num_kv, size=size),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([1, 2]),
)
SCHEMES = st.builds(Scheme, num_workers=st.integers(1, 8), split=st.sampled_from(list(Split)), is_fused=st.booleans())
