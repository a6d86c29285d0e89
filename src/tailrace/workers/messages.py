"""What the controller and its workers say to each other: small, typed, and without tensors.

Weights never travel here: they go through the weight channel. Token arrays do, as NumPy arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.settings import ModelSettings, RolloutSettings, TrainerSettings
from tailrace.core.costs import PrefillWork
from tailrace.core.ids import TrajectoryId, Version
from tailrace.engines.contract import Output, Request
from tailrace.trainer.batch import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutInit:
    """First message to a rollout worker. Answered by ``RolloutReady``."""

    checkpoint: Path
    model: ModelSettings
    rollout: RolloutSettings
    max_length: int
    """Most tokens of a prompt with its response."""
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutReady:
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate:
    """Answered by ``Report``s until each request has finished, or by ``Refused``."""

    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    version: Version
    outputs: tuple[Output, ...]
    num_preemptions: int
    submit_s: float
    """Seconds spent on ``Generate`` since the last report, without the steps that follow."""
    interrupt_s: float
    """The same, on ``Stop``."""
    prefill: PrefillWork | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Answered by a ``Report`` with the last tokens of those that were still running."""

    trajectories: tuple[TrajectoryId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """Answered by ``Forgotten``."""

    trajectories: tuple[TrajectoryId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    lengths: tuple[tuple[TrajectoryId, int], ...]
    """Of each; 0 if an earlier report told of its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Answered by ``Released``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """Answered by ``Pulled``."""

    version: Version
    channel: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    version: Version
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingInit:
    """First message to the training worker. Answered by ``TrainingReady``."""

    model_path: Path
    checkpoint: Path | None
    """Where to continue from; None: the model itself."""
    model: ModelSettings
    trainer: TrainerSettings
    algorithm: AlgorithmSettings
    temperature: float
    max_response_length: int
    max_steps: int
    seed: int
    channel_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingReady:
    version: Version
    channel: Path
    """Where published weights can be pulled from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """Answered by ``Trained`` or ``Refused``."""

    version: Version
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    version: Version
    seconds: float
    metrics: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Answered by ``Published`` or ``Refused``, before the answer to any ``Train`` that comes after it."""

    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    version: Version
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """Write a checkpoint into this directory. Answered by ``Saved`` or ``SaveFailed``."""

    version: Version
    directory: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    version: Version
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveFailed:
    version: Version
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The worker cannot do what it was asked to, and says why."""

    reason: str
