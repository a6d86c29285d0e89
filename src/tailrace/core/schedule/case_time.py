"""How long a test case of a program may run: what a user sets of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseTime:
    """Settings of the time limits of test cases. The limit of a case is between ``least_s`` and ``most_s``."""

    strategy: str = "fixed"
    """Name of the strategy that chooses limits (`policies/strategies.py`)."""
    most_s: float = 30.0
    """The limit of a case of which nothing is known, and of every case of a probe."""
    least_s: float = 2.0
    factor: float = 1.5
    """A case may take this many times as long as the slowest correct response took for it."""
    probe_share: float = 0.02
    """Share of the responses that are probes: they get ``most_s``, so that slow and correct ones can still be seen."""
    lift_share: float = 0.5
    """If a larger share of the responses is cut in a case, correct ones may be among them: its limit is raised."""
    lift_after: int = 8
    """Responses to a problem before that share is judged."""

    def __post_init__(self) -> None:
        if not 0 < self.least_s <= self.most_s:
            raise ValueError(f"least_s must be above 0 and at most most_s, got {self.least_s} and {self.most_s}")
        if self.factor < 1 or self.lift_after < 1:
            raise ValueError(f"factor and lift_after must be at least 1, got {self.factor} and {self.lift_after}")
        if not (0 <= self.probe_share <= 1 and 0 < self.lift_share <= 1):
            raise ValueError(f"shares must be from 0 to 1, got {self.probe_share} and {self.lift_share}")

    @property
    def slow_s(self) -> float:
        """Only longer times of a correct response can change a limit."""
        return self.least_s / self.factor

    def told_from_s(self, limit_s: float) -> float:
        """Seconds from which the time of a case tells something new, if the case ran with this limit: shorter ones are
        known to be possible, because the limit follows from them."""
        return self.slow_s if limit_s >= self.most_s else max(self.slow_s, limit_s / self.factor)
