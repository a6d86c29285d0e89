"""Limits of an engine: running sequences, their length, the KV cache; and the length classes that follow."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tailrace.core.length_classes import length_classes


class Decoding(StrEnum):
    """How the engine decodes."""

    AUTO = "auto"
    """``paged`` on a GPU where that is possible, otherwise ``plain``."""
    PLAIN = "plain"
    """One token at a time in plain torch, one row of the KV cache per sequence."""
    PAGED = "paged"
    """Several tokens at a time, the KV cache in pages; on a GPU with Triton kernels and CUDA graphs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    max_running: int
    """Most sequences generated at the same time."""
    max_length: int
    """Most tokens of one sequence, prompt and response together."""
    kv_tokens: int | None = None
    """Size of the KV cache in tokens; default: room for ``max_running / 2`` sequences of ``max_length``."""
    prefill_chunk: int = 512
    """Most prompt tokens computed in one step."""

    def __post_init__(self) -> None:
        for name in ("max_running", "max_length", "prefill_chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.kv_tokens is not None and self.kv_tokens < self.max_length:
            raise ValueError(f"kv_tokens ({self.kv_tokens}) must hold one sequence of max_length ({self.max_length})")

    @property
    def kv_budget(self) -> int:
        if self.kv_tokens is not None:
            return self.kv_tokens
        return max(self.max_length, self.max_running * self.max_length // 2)

    @property
    def capacities(self) -> tuple[int, ...]:
        """Capacity of each length class, in tokens."""
        return length_classes(self.max_length)
