"""What a logger is told, and what it must be able to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tailrace.observe.metrics.rows import Row


class Sink(Protocol):
    def write(self, row: Row) -> None:
        """One row; its ``step`` never goes back."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What a dashboard is told about a run."""

    directory: Path
    project: str
    name: str
    config: Mapping[str, Any]
