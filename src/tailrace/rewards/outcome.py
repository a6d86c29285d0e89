"""What goes into a reward and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tailrace.core.ids import TrajectoryId
from tailrace.core.outcomes import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTask:
    trajectory: TrajectoryId
    row: Mapping[str, object]
    """The prompt's row as it was read: `prompt`, `answer` where there is one, and every other column."""
    response: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreResult:
    trajectory: TrajectoryId
    outcome: Outcome
    score: float
    """0 unless the outcome is ok."""
    extras: Mapping[str, float] = field(default_factory=dict)
    """Other numbers the functions returned, to be logged."""
    detail: str = ""
    """What went wrong, in a sentence; empty when nothing did."""
    seconds: float
