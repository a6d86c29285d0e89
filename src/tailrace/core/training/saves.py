"""When a checkpoint is due because of the time that has passed, not of a number of steps."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.core.ids import Version

PAUSE_S = 300.0
"""Least seconds between two checkpoints, and before the first."""


@dataclass(slots=True, kw_only=True)
class Saves:
    """The newest checkpoint, and what it took."""

    version: Version = Version(0)
    """Its version; 0: there is none."""
    at: float = 0.0
    """When it was written, or skipped."""
    seconds: float = 0.0
    """How long it took, from the request on; 0: not known."""

    def is_due(self, share: float, now: float) -> bool:
        """Whether another one now leaves the time that checkpoints take below ``share``; 0: time does not decide."""
        return share > 0 and now - self.at >= max(PAUSE_S, self.seconds / share)
