"""The part of each parameter that each rank of the engine needs, as vLLM divides a model among devices.

vLLM divides attention by heads and the other layers evenly, as the sharding table does. The vocabulary is padded to a
multiple of 64 and then divided evenly. Modules that the table does not name go to every rank whole; vLLM takes what it
needs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tailrace.weights.sharding.table import Box, Heads, Holding, Parameter, Piece, Scheme, holdings, whole

Parts = dict[str, tuple[tuple[int, ...], Box]]
"""For each parameter: its whole shape, and the box of it that the rank holds."""
_VOCABULARY = ("embed_tokens.weight", "lm_head.weight")
_VOCABULARY_PADDING = 64


def model_parameters(checkpoint: Path, dtype: torch.dtype) -> list[Parameter]:
    """All parameters of the Transformers model, layer by layer. Parameters that are tied appear once."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(checkpoint))
    name_of_dtype = str(dtype).removeprefix("torch.")
    return [
        Parameter(name=name, shape=tuple(parameter.shape), dtype=name_of_dtype)
        for name, parameter in model.named_parameters()
    ]


def engine_layout(checkpoint: Path, parameters: list[Parameter], num_ranks: int) -> tuple[Holding, ...]:
    if num_ranks == 1:
        return (whole(parameters, "engine 0"),)
    scheme = Scheme(num_workers=num_ranks)
    shape_of = {parameter.name: parameter.shape for parameter in parameters}
    # In the order of the layers, so that vLLM can complete one layer after the other.
    place = {parameter.name: index for index, parameter in enumerate(parameters)}
    return tuple(
        replace(
            holding,
            tensors=(),
            pieces=tuple(
                _as_vllm_divides(piece, shape_of[piece.parameter], rank, num_ranks)
                for piece in sorted(holding.pieces, key=lambda piece: place[piece.parameter])
            ),
        )
        for rank, holding in enumerate(holdings(parameters, _heads(checkpoint), scheme, side="engine"))
    )


def rank_parts(holding: Holding, parameters: list[Parameter]) -> Parts:
    shape_of = {parameter.name: parameter.shape for parameter in parameters}
    return {piece.parameter: (shape_of[piece.parameter], piece.box) for piece in holding.pieces}


def _heads(checkpoint: Path) -> Heads:
    config: Any = AutoConfig.from_pretrained(checkpoint)
    num_query = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // num_query
    return Heads(num_query=num_query, num_kv=getattr(config, "num_key_value_heads", None) or num_query, size=size)


def _as_vllm_divides(piece: Piece, shape: tuple[int, ...], rank: int, num_ranks: int) -> Piece:
    if not piece.parameter.endswith(_VOCABULARY):
        return piece
    num_rows = shape[0]
    per_rank = -(-num_rows // _VOCABULARY_PADDING) * _VOCABULARY_PADDING // num_ranks
    # A rank that holds padding only still gets a row, so that vLLM sees the parameter.
    start = min(rank * per_rank, num_rows - 1)
    return replace(piece, box=((start, min(start + per_rank, num_rows)), *piece.box[1:]))
