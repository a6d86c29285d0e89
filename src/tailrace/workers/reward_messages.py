"""What a reward process and its pool say to each other, besides `ScoreTask` and `ScoreResult`.

They live apart from the worker's own module: that one runs as `__main__`, and a class must have one home.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.core.ids import TrajectoryId
from tailrace.rewards.outcome import RewardUse


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardInit:
    uses: tuple[RewardUse, ...]
    memory_mb: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardReady:
    """The functions are loaded; tasks may come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRefused:
    """The functions cannot be loaded; the process ends."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreStarted:
    """From here on the task's time limit runs."""

    trajectory: TrajectoryId
