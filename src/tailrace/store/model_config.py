"""Reads the ``config.json`` of a Hugging Face checkpoint, for any architecture."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFIG_NAME = "config.json"
_NUMBER_OF_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names of this number in the families of Qwen, Mixtral and DeepSeek."""


def read_model_config(checkpoint: Path) -> dict[str, Any]:
    """Return the contents of ``config.json``; ``ValueError`` if the file is missing or not a JSON object."""
    path = checkpoint / CONFIG_NAME
    if not path.is_file():
        raise ValueError(f"{checkpoint} is not a Hugging Face checkpoint: it has no {CONFIG_NAME}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise not_a_config(checkpoint, str(error)) from error
    if not isinstance(config, dict):
        raise not_a_config(checkpoint, "it is not a table")
    return config


def vocabulary_size(checkpoint: Path) -> int:
    """Return the number of tokens in the model's vocabulary."""
    config = read_model_config(checkpoint)
    if not isinstance(size := config.get("vocab_size"), int):
        raise not_a_config(checkpoint, "it lacks 'vocab_size'")
    return size


def is_mixture(checkpoint: Path) -> bool:
    """Return whether the model is a mixture of experts."""
    return has_experts(read_model_config(checkpoint))


def has_experts(config: Mapping[str, Any]) -> bool:
    """``config``: contents of ``config.json``."""
    return any((config.get(name) or 0) > 1 for name in _NUMBER_OF_EXPERTS)


def not_a_config(checkpoint: Path, problem: str) -> ValueError:
    return ValueError(f"{checkpoint / CONFIG_NAME} is not a model's configuration ({problem}); fetch the model again")
