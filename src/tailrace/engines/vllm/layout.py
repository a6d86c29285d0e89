"""The weights that each rank of the engine takes, described by the sharding table (``weights/sharding.py``)."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tailrace.weights.sharding import Holding, Parameter, whole


def model_parameters(checkpoint: Path, dtype: torch.dtype) -> list[Parameter]:
    """All parameters of the Transformers model, layer by layer. Parameters that are tied appear once."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(checkpoint))
    name_of_dtype = str(dtype).removeprefix("torch.")
    return [
        Parameter(name=name, shape=tuple(parameter.shape), dtype=name_of_dtype)
        for name, parameter in model.named_parameters()
    ]


def engine_layout(parameters: list[Parameter], num_ranks: int) -> tuple[Holding, ...]:
    return tuple(whole(parameters, f"engine {rank}") for rank in range(num_ranks))
