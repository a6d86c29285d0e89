"""A clock for the writer's wait: sleeping takes no time, and is counted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class VirtualTime:
    seconds: float = 0.0

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
