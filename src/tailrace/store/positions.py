"""How many positions a model has: the most tokens of a prompt with its response. Read from ``config.json``, as vLLM
reads it (``_get_and_verify_max_len``).

* The number has several names. If a config has more than one, the smallest counts; ``model_max_length`` wins.
* Rope scaling multiplies it by ``factor``, unless the number is already the scaled one (``longrope``, ``llama3``).
* With ``yarn`` some configs give the scaled number and others the original one. The larger of the number and
  ``original_max_position_embeddings`` times ``factor`` counts; versions of vLLM differ in which of the two they take.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_NAMES = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_target_positions",
    "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
_LAST_WORD = "model_max_length"
_TEXT_CONFIG = "text_config"
"""The part of a multimodal model's config that describes its language model."""
_ALREADY_SCALED = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
_YARN = ("yarn", "deepseek_yarn")
_SCALED_FAMILY = "gemma3"
"""Models of this family give the scaled number with every kind of rope."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    count: int
    how: str
    """Where the number comes from: its name in ``config.json``, and the rope scaling if there is one."""


def positions_of(config: Mapping[str, Any]) -> Positions | None:
    """``config``: contents of ``config.json``. None if it names no limit."""
    text = config.get(_TEXT_CONFIG)
    config = text if isinstance(text, Mapping) else config
    found = {name: number for name in _NAMES if (number := _number(config.get(name)))}
    if not found:
        return None
    name = _LAST_WORD if _LAST_WORD in found else min(found, key=lambda name: found[name])
    if _SCALED_FAMILY in str(config.get("model_type")):
        return Positions(count=int(found[name]), how=name)
    return _scaled(name, found[name], list(_ropes(config)))


def _scaled(name: str, number: float, ropes: list[Mapping[str, Any]]) -> Positions:
    best = Positions(count=int(number), how=name)
    for rope in ropes:
        kind = rope.get("rope_type") or rope.get("type") or "default"
        factor, original = _number(rope.get("factor")) or 1.0, _number(rope.get("original_max_position_embeddings"))
        if kind in _YARN and original and original * factor > number:
            how = f"original_max_position_embeddings {original:g} x {factor:g}, rope scaling '{kind}'"
            best = Positions(count=int(original * factor), how=how)
        elif kind not in _ALREADY_SCALED and factor != 1.0:
            best = Positions(count=int(number * factor), how=f"{name} {number:g} x {factor:g}, rope scaling '{kind}'")
    return best


def _ropes(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The parameters of rope, one table for each kind of layer if they differ. Older configs have ``rope_scaling``."""
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(rope, Mapping):
        return
    nested = [value for value in rope.values() if isinstance(value, Mapping)]
    yield from nested or [rope]


def _number(value: object) -> float:
    """0 if it is no positive number."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else 0.0
