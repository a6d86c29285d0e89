"""Builds the sampling parameters of requests from settings and from the model's own end-of-sequence tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tailrace.config.rollout_settings import SamplingSettings
from tailrace.engines.contract import Sampling


def sampling(settings: SamplingSettings, end_tokens: tuple[int, ...]) -> Sampling:
    return Sampling(
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        min_p=settings.min_p,
        stop_token_ids=tuple(sorted({*end_tokens, *settings.stop_token_ids})),
        stop_strings=settings.stop,
    )


def end_tokens(model: Path, tokenizer_end: int | None) -> tuple[int, ...]:
    """All end-of-sequence tokens that the model's files name."""
    found: set[int] = set() if tokenizer_end is None else {tokenizer_end}
    for name in ("generation_config.json", "config.json"):
        if (path := model / name).exists():
            found |= _as_set(json.loads(path.read_text()).get("eos_token_id"))
    return tuple(sorted(found))


def _as_set(value: Any) -> set[int]:
    if value is None:
        return set()
    return {int(token) for token in value} if isinstance(value, list) else {int(value)}
