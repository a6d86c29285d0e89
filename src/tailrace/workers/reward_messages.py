"""The messages between a reward process and its pool, besides `RewardTask` and `ScoreResult`."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.core.ids import TrajectoryId
from tailrace.data.detokenizer import Detokenizer
from tailrace.rewards.score_task import RewardUse


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardInit:
    uses: tuple[RewardUse, ...]
    memory_mb: int | None
    detokenizer: Detokenizer | None = None
    """Makes the texts of responses that come as tokens; None: they come as texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardReady:
    """The functions are loaded, and the process accepts tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRefused:
    """The functions cannot be loaded; the process ends."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseUnreadable:
    """The tokens of a response cannot be read from the payload store."""

    trajectory: TrajectoryId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreStarted:
    """The process has started on a task: its time limit begins."""

    trajectory: TrajectoryId
