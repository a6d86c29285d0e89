"""Count of lost workers. Restarts are limited per optimizer step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Losses:
    """How often a worker was lost since the last optimizer step, and the reason of the last loss."""

    count: int = 0
    last: str = ""

    def add(self, reason: str) -> None:
        self.count += 1
        self.last = reason
