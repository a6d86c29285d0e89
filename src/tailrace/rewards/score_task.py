"""What goes into a reward and what comes out of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tailrace.core.commands import CaseLimits
from tailrace.core.ids import ResponseId
from tailrace.core.outcomes import Outcome

TIMES = "case_times"
"""Key under which a built-in reward returns its `ProgramTimes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardUse:
    """A function of the run and the prompts it is for."""

    function: str
    """`exact_match`, `path/to/file.py:function`, ..."""
    label: str = ""
    """Its short name, under which its numbers are logged; empty: it is the only function of the run."""
    weight: float = 1.0
    timeout_s: float = 10.0
    """Seconds that it may take for one response, unless it knows its limit itself (`TimedReward`)."""
    columns: tuple[str, ...] = ("prompt", "answer")
    """Columns that every row it has to score holds."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Options of a built-in reward that has some."""


class TimedReward(ABC):
    """A built-in reward whose time limit depends on the response."""

    @abstractmethod
    def prepare(self, response: str, **columns: Any) -> tuple[float, Callable[[], object]]:
        """Return the limit in seconds, and the work that makes the score."""

    def __call__(self, response: str, **columns: Any) -> object:
        return self.prepare(response, **columns)[1]()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTask:
    response_id: ResponseId
    row: Mapping[str, object]
    """The prompt's row: `prompt`, `answer` where there is one, and every column it was read with."""
    response: str
    prompt_text: str = ""
    """The prompt as the model saw it."""
    prompt_tokens: tuple[int, ...] = ()
    response_tokens: tuple[int, ...] = ()
    rewards: tuple[str, ...] = ()
    """The functions to score it with, as the pool knows them; none: all of them."""
    source: str = ""
    """The source of the prompt, where the training prompts come from several."""
    case_limits: CaseLimits | None = None
    """How long its test cases may run; None: as long as the reward's own limit says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTimes:
    """What a reward with test cases tells about their times, beside the score."""

    is_correct: bool
    """Whether every case passed."""
    slow: tuple[tuple[int, float], ...] = ()
    """Pairs (case, seconds) that can change a limit; only if every case passed."""
    cut: tuple[tuple[int, float], ...] = ()
    """Pairs (case, limit) that ran out of time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreResult:
    response_id: ResponseId
    outcome: Outcome
    score: float
    """0 unless the outcome is ok. Weights are applied."""
    extras: Mapping[str, float] = field(default_factory=dict)
    """Other numbers the functions returned, to be logged."""
    detail: str = ""
    """What went wrong, in a sentence; empty when nothing did."""
    case_times: ProgramTimes | None = None
    """How long test cases took, if its reward has some."""
    seconds: float
    queued_s: float = 0.0
    """How long it waited before."""
