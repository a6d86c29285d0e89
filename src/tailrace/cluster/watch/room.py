"""The watch room: when the scheduler wants to be woken, and which reports it has ignored."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Watch:
    """State of the watch room."""

    wake_at: float | None = None
    """The time of the last ``Wake``; None: it has come, or there was none."""
    num_ignored: int = 0
    """Reports that could not be true: of unknown or ended jobs, repeated, or about phases that nobody asked for."""

    # Notices

    def ignore(self) -> None:
        """A report could not be true. It changes nothing."""
        self.num_ignored += 1

    def wake(self) -> None:
        """The time of the last ``Wake`` has come."""
        self.wake_at = None
