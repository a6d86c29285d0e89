"""What the shared fold remembers of a run: its responses, its instances and its trainer.

All of it can be written to a checkpoint and read back. Records of finished work are removed, so the size depends on
what is in progress and not on how long the run has lasted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from tailrace.core.events import Finished, Progressed
from tailrace.core.ids import InstanceId, ResponseId, Version
from tailrace.core.outcomes import Outcome, Part
from tailrace.core.responses.response import Finish
from tailrace.core.schedule import Schedule


class Work(Enum):
    """Work that the trainer does one piece after the other."""

    TRAIN = "train"
    SAVE = "save"


class TrainerOrder(NamedTuple):
    """Work that the trainer was asked to do."""

    work: Work
    version: Version
    """The version it trains from, or saves."""


class Task(Enum):
    """Work of an instance other than generating."""

    START = "start"
    PULL = "pull"
    RELEASE = "release"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRecord:
    """One part of the score of a response."""

    part: Part
    outcome: Outcome
    score: float
    seconds: float
    """How long it was computed."""
    queued_s: float
    """How long it waited before."""
    detail: str = ""


@dataclass(slots=True, kw_only=True)
class ResponseRecord:
    """One response, from its first ``Submit`` until its group is trained or the response is dropped."""

    id: ResponseId
    segments: list[tuple[Version, int]] = field(default_factory=list)
    """(version, number of tokens it generated), oldest first."""
    length: int = 0
    """Tokens reported so far."""
    instance: InstanceId | None = None
    """The instance that runs it; None while it waits, and after it ended."""
    is_stopping: bool = False
    """Its instance was asked to interrupt it."""
    finish: Finish | None = None
    """STOP or LENGTH once it has ended. An interrupted response has not ended."""
    is_dropped: bool = False
    """It will not be trained or evaluated. Its instance may still generate tokens for it."""
    outcome: Outcome | None = None
    score: float = 0.0
    """0 where the reward failed."""
    extras: tuple[tuple[str, float], ...] = ()
    parts: tuple[PartRecord, ...] = ()
    """Parts of its score that came back."""

    @property
    def reward_s(self) -> float:
        """Seconds in which its score was computed, all parts together."""
        return sum(part.seconds for part in self.parts)

    @property
    def is_without_reward(self) -> bool:
        """Whether its score is invalid because no reward applies to it."""
        abstained = [part.outcome is Outcome.ABSTAINED for part in self.parts]
        return self.outcome is Outcome.INVALID and all(abstained)

    @property
    def is_clipped(self) -> bool:
        """Whether the token limit ended it."""
        return self.finish is Finish.LENGTH

    def age(self, version: int) -> int:
        """Versions between the one that generated its first token and ``version``; 0 if it has no tokens."""
        return version - self.segments[0][0] if self.segments else 0

    def is_past(self, part: Progressed | Finished, version: Version) -> bool:
        """Whether a report repeats an earlier one: it tells less, of an older version, or of the end of a segment that
        nobody has asked to end."""
        if part.length < self.length or (self.segments and version < self.segments[-1][0]):
            return True
        is_interrupted = isinstance(part, Finished) and part.finish is Finish.INTERRUPTED
        return is_interrupted and not self.is_stopping and part.length == self.length

    def grow(self, length: int, version: Version) -> int:
        """Add tokens up to ``length`` and return how many are new. A report older than the last one adds none."""
        new = length - self.length
        if new <= 0:
            return 0
        if self.segments and self.segments[-1][0] == version:
            self.segments[-1] = (version, self.segments[-1][1] + new)
        else:
            self.segments.append((version, new))
        self.length = length
        return new


@dataclass(slots=True, kw_only=True)
class InstanceRecord:
    """One rollout instance."""

    version: Version | None = None
    """The weights it holds."""
    is_up: bool = False
    task: Task | None = None
    """What it was asked to do and has not done yet, beside generating."""
    incarnation: int = 0
    """Which start of it was last asked for."""
    pulling: Version | None = None
    """The version that it was last asked to pull."""
    has_released: bool = False
    """It has released its memory and not taken it again."""
    is_retiring: bool = False
    """It shall leave the fleet when it has ended, or when it has released its memory: another parallel size works."""
    is_gone: bool = False
    """It has left the fleet. It may come back."""
    has_had_work: bool = False
    """Since the run was last started or resumed: it was given a response, or was lost."""
    num_preemptions: int = 0
    """Preemptions since it was last started, according to its last report."""
    running: dict[ResponseId, ResponseRecord] = field(default_factory=dict, init=False)
    """The unfinished responses it holds, dropped ones included. Follows from ``Response.instance``."""


@dataclass(slots=True, kw_only=True)
class StepRecord:
    """A training step of which at least one piece was asked for."""

    version: Version
    """The version it starts from."""
    responses: tuple[ResponseId, ...]
    """The responses of all pieces that were asked for."""
    num_asked: int = 0
    """Pieces that were asked for."""
    num_done: int = 0
    """Pieces that were added."""
    is_finishing: bool = False
    """Whether the finish was asked for, too."""


@dataclass(slots=True, kw_only=True)
class RunState:
    """Everything the shared fold remembers between two journal entries."""

    schedule: Schedule | None = None
    now: float = 0.0
    version: Version = Version(0)
    """The newest trained version."""
    responses: dict[ResponseId, ResponseRecord] = field(default_factory=dict)
    """Responses in progress, and dropped ones that an instance still runs."""
    instances: dict[InstanceId, InstanceRecord] = field(default_factory=dict)
    scoring: dict[ResponseId, tuple[Part, ...]] = field(default_factory=dict)
    """The parts of the score of each response that were asked for and are not back."""
    step: StepRecord | None = None
    """The step that is being trained."""
    orders: list[TrainerOrder] = field(default_factory=list)
    """What the trainer was asked to do and has not done yet, in order."""
    publishing: Version | None = None
    """The version that is being published."""
    is_stopping: bool = False
    """Whether the run saves and then ends. It takes no scores."""
    is_trainer_starting: bool = False
    trainer_incarnation: int = 0
    """Which start of the trainer was last asked for."""

    @staticmethod
    def upgraded(stored: dict[str, object]) -> dict[str, object]:
        """Return the stored fields as this release has them. Scores had one part before."""
        scoring = stored.get("scoring")
        if not isinstance(scoring, dict) or None not in scoring.values():
            return stored
        return {**stored, "scoring": {response: [Part.FUNCTION.value] for response in scoring}}
