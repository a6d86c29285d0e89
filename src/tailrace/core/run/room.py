"""The run room: whether the run continues, its time limits, its timer, and which reports it refused."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.core.schedule import Limits


@dataclass(slots=True, kw_only=True)
class RequestedStop:
    """A request to stop that is being followed."""

    reason: str
    since: float


@dataclass(slots=True, kw_only=True)
class Run:
    """State of the run as a whole."""

    limits: Limits = Limits()
    has_begun: bool = False
    verdict: str | None = None
    """Why the run is over; None while it continues."""
    stop: RequestedStop | None = None
    """The request to save and end; None: there was none."""
    timer_at: float | None = None
    """Time of the timer; None: no timer is set."""
    num_refused: int = 0
    """Number of reports that were repeated, late or impossible, and therefore ignored."""
    last_refusal: str = ""
    is_refused: bool = False
    """Whether a part of the event that is being handled was refused."""

    @property
    def is_over(self) -> bool:
        return self.verdict is not None

    @property
    def reason(self) -> str:
        """Why the run is over."""
        return self.verdict or ""

    @property
    def num_refused_reports(self) -> int:
        return self.num_refused

    @property
    def last_refused_report(self) -> str:
        return self.last_refusal

    def end(self, reason: str = "") -> None:
        """End the run for this reason. If it was asked to stop, the verdict names that request first."""
        asked = self.stop.reason if self.stop is not None else ""
        self.verdict = "; ".join(dict.fromkeys(filter(None, (asked, reason))))

    @property
    def is_stopping(self) -> bool:
        """Whether the run saves and then ends."""
        return self.stop is not None

    @property
    def stop_at(self) -> float | None:
        """When a run that is stopping ends at the latest; None: it is not stopping."""
        return None if self.stop is None else self.stop.since + self.limits.stop_s

    def begin_event(self) -> None:
        self.is_refused = False

    def refuse(self, what: str) -> None:
        """Count a report, or a part of one, that was repeated, late or impossible. It changes nothing else."""
        self.num_refused += not self.is_refused
        self.is_refused, self.last_refusal = True, what
