"""The watch room: what time it is, when the scheduler wants to be woken, and which reports it has ignored."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Watch:
    """State of the watch room."""

    now: float = -math.inf
    """The time of the newest event."""
    wake_at: float | None = None
    """The time of the last ``Wake``; None: it has come, or there was none."""
    num_ignored: int = 0
    """Reports that could not be true: of unknown or ended jobs, repeated, or about phases that nobody asked for."""

    # Notices

    def note_time(self, now: float) -> None:
        """An event has happened at this time. ``ValueError``, and nothing changes: that cannot be."""
        if not (math.isfinite(now) and now >= self.now):
            raise ValueError(f"now must be a number, and not before the newest event at {self.now} s, got {now!r}")
        self.now = now

    def ignore(self) -> None:
        """A report could not be true. It changes nothing."""
        self.num_ignored += 1

    def wake(self) -> None:
        """The time of the last ``Wake`` has come."""
        self.wake_at = None
