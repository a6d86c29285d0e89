"""The messages between a reward process and its pool, besides `RewardTask` and `ScoreResult`."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.core.ids import ResponseId
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
class SkipTasks:
    """Tasks that the process shall not start: their results are not needed, or another process has them."""

    responses: frozenset[ResponseId]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSkipped:
    """The process has not started on this task and never will."""

    response_id: ResponseId


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardEnding:
    """The process has run out of memory. It sends one more result, then it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReturned:
    """A signal to stop has come, so the process gives this task back without a result, and ends."""

    response_id: ResponseId


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseUnreadable:
    """The tokens of a response cannot be read from the payload store."""

    response_id: ResponseId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreStarted:
    """The process calls the first function for this response, or the next one: its time limit begins."""

    response_id: ResponseId
    limit_s: float
