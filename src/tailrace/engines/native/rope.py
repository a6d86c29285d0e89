"""Rotary position embeddings of the supported families, as a table of complex numbers.

Variants: ``default``, ``linear``, ``dynamic`` (within the original context, where it equals ``default``),
``llama3`` and ``yarn``. Frequencies are computed in float32, as Transformers does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from tailrace.engines.native.architecture import Rope


def rotation_table(rope: Rope, num_positions: int, device: torch.device) -> torch.Tensor:
    """The factor of each pair of dimensions at each position, as complex64 ``[num_positions, head_dim / 2]``."""
    if rope.variant == "dynamic" and num_positions > rope.max_positions:
        raise ValueError(f"dynamic rope is supported up to {rope.max_positions} positions, not {num_positions}")
    frequencies, scale = _frequencies(rope)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
    return torch.complex(angles.cos() * scale, angles.sin() * scale).to(device)


def _frequencies(rope: Rope) -> tuple[torch.Tensor, float]:
    """Frequency of each pair of dimensions, and a factor on the whole table."""
    exponents = torch.arange(0, rope.head_dim, 2, dtype=torch.int64).to(torch.float32) / rope.head_dim
    plain = 1.0 / (rope.theta**exponents)
    if rope.variant == "linear":
        return plain / float(rope.parameters["factor"]), 1.0
    if rope.variant == "llama3":
        return _llama3(rope, plain), 1.0
    if rope.variant == "yarn":
        return _yarn(rope, plain)
    return plain, 1.0


def _llama3(rope: Rope, plain: torch.Tensor) -> torch.Tensor:
    """Keep high frequencies, divide low frequencies by ``factor``, and interpolate between them."""
    settings = rope.parameters
    factor, low, high = (float(settings[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = float(settings["original_max_position_embeddings"]) * plain / (2 * math.pi)
    blend = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - blend) * plain / factor + blend * plain


def _yarn(rope: Rope, plain: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Divide low frequencies by ``factor``, keep high frequencies, interpolate between them, and scale attention."""
    settings = rope.parameters
    original = settings.get("original_max_position_embeddings") or rope.max_positions
    factor = float(settings.get("factor") or rope.max_positions / original)
    fast, slow = settings.get("beta_fast") or 32, settings.get("beta_slow") or 1

    def dimension_of(turns: float) -> float:
        return rope.head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension_of(fast), dimension_of(slow)
    if settings.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.head_dim - 1)
    ramp = torch.arange(rope.head_dim // 2, dtype=torch.float32) - low
    keep = 1 - (ramp / max(high - low, 0.001)).clamp(0, 1)
    return plain / factor * (1 - keep) + plain * keep, _yarn_scale(settings, factor)


def _yarn_scale(settings: Mapping[str, Any], factor: float) -> float:
    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if settings.get("attention_factor") is not None:
        return float(settings["attention_factor"])
    if settings.get("mscale") and settings.get("mscale_all_dim"):
        return mscale(float(settings["mscale"])) / mscale(float(settings["mscale_all_dim"]))
    return mscale(1.0)
