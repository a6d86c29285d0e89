"""The messages between a judge and the controller, besides `RewardTask`, `ScoreResult` and `SkipTasks`.

Importing this needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tailrace.core.ids import ResponseId
from tailrace.data.detokenizer import Detokenizer
from tailrace.judge.passes import MAX_TOKENS
from tailrace.judge.questions import Question
from tailrace.judge.template import YES_OR_NO, AnswerWord, JudgeTemplate
from tailrace.rewards.score_task import ScoreResult
from tailrace.sizing.resident_layers import OffloadProfile
from tailrace.workers.reward_tasks import RewardTask


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeInit:
    """First message to a judge. Answered by ``JudgeReady`` or ``JudgeRefused``."""

    model_path: Path
    template: JudgeTemplate
    answers: tuple[AnswerWord, ...] = YES_OR_NO
    """Words whose log-probs give the score; none: the model has a reward head."""
    device: str = "auto"
    dtype: str = "bfloat16"
    budget_bytes: int | None = None
    """Memory of the device that weights and passes may take; None: all layers are resident."""
    profile: OffloadProfile | None = None
    """What passes need; None: it is measured at the start, if there is a budget."""
    is_packed: bool = False
    """Whether short sequences are computed side by side, where the device can."""
    max_tokens: int = MAX_TOKENS
    """Most tokens of a pass with several sequences."""
    threads: int | None = None
    """Threads of torch; None: as many as torch likes."""
    detokenizer: Detokenizer | None = None
    """Makes the texts of responses that come as tokens; None: they come as texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlJudgeInit:
    """First message to a judge whose model runs behind an OpenAI-compatible server. Answered by ``JudgeReady`` or
    ``JudgeRefused``."""

    url: str
    """The part of the address before ``/chat/completions``."""
    model: str
    """Name of the model, as the server knows it."""
    template: JudgeTemplate
    answers: tuple[AnswerWord, ...] = YES_OR_NO
    writes: bool = False
    """Whether the judge writes a text, whose last answer word counts. If not, the log-probs of the answer words are
    read where the answer begins."""
    max_reply_length: int = 512
    """Most tokens of a text that the judge writes."""
    max_requests: int = 32
    """Most requests that are open at the same time."""
    timeout_s: float = 120.0
    """Seconds that one request may take."""
    key_variable: str = "OPENAI_API_KEY"
    """Environment variable that holds the key of the server."""
    detokenizer: Detokenizer | None = None
    """As in ``JudgeInit``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeReady:
    """The model is loaded, and the judge accepts responses."""

    num_layers: int = 0
    num_resident: int = 0
    profile: OffloadProfile | None = None
    """What passes need, as given or measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRefused:
    """The model or the template cannot be used; the judge ends."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeResponses:
    """Score these responses. Each is answered by a result in ``ResponsesJudged``, by ``ResponseUnreadable``, or by
    ``TaskSkipped``."""

    tasks: tuple[RewardTask, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLogprobs:
    """Answer these questions, each about one response. Answered in ``LogprobsRead`` or by ``QuestionRefused``."""

    questions: tuple[tuple[ResponseId, Question], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassStarted:
    """The judge has started to compute these responses: their time limits begin. A judge behind a server has several
    passes at the same time, each of one response."""

    responses: tuple[ResponseId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesJudged:
    results: tuple[ScoreResult, ...]
    num_tokens: int = 0
    """Tokens of the pass."""
    num_resident: int = 0
    """Layers that were resident."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobsRead:
    found: tuple[tuple[ResponseId, NDArray[np.float32]], ...]
    """Positions x candidates of each question."""
    num_tokens: int
    num_resident: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionRefused:
    response_id: ResponseId
    reason: str
