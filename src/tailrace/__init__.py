"""RL post-training of language models that never waits for the slowest response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tailrace.api import train as train

__all__ = ["train"]


def __getattr__(name: str) -> Any:
    # Imported on first use: `tailrace.core` must not pay for what it does not need.
    if name == "train":
        from tailrace.api import train

        return train
    raise AttributeError(f"module 'tailrace' has no attribute {name!r}")
