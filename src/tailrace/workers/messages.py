"""The messages between the controller and its workers: small, typed, and without tensors.

Weights are not in messages: they go through the weight channel, whose address is in messages. Tokens are in messages,
as NumPy arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.model_settings import ModelSettings
from tailrace.config.rollout_settings import RolloutSettings
from tailrace.config.trainer_settings import TrainerSettings
from tailrace.core.costs import PrefillWork
from tailrace.core.ids import ResponseId, Version
from tailrace.engines.contract import Output, Request
from tailrace.store.segment import Logprobs
from tailrace.weights.address import ChannelAddress
from tailrace.workers.packing import PackedOutputs, pack, unpack
from tailrace.workers.sample_transfer import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutInit:
    """First message to a rollout worker. Answered by ``RolloutReady``."""

    checkpoint: Path
    model: ModelSettings
    rollout: RolloutSettings
    max_length: int
    """Most tokens of a prompt with its response."""
    seed: int
    may_release: bool = False
    """Whether it will be asked to release its memory while training runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutReady:
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate:
    """Generate these responses. Answered by ``Report``s until each request has finished, or by ``Refused``."""

    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    version: Version
    outputs: tuple[Output, ...]
    num_preemptions: int
    submit_s: float
    """Seconds spent on ``Generate`` messages since the last report, engine steps not included."""
    interrupt_s: float
    """Seconds spent on ``Stop`` messages since the last report."""
    prefill: PrefillWork | None

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        """Pickle all tokens as one array, so that a report of thousands of responses is read in a few milliseconds."""
        rest = (self.version, self.num_preemptions, self.submit_s, self.interrupt_s, self.prefill)
        return _unpack_report, (pack(self.outputs), *rest)


def _unpack_report(
    outputs: PackedOutputs,
    version: Version,
    num_preemptions: int,
    submit_s: float,
    interrupt_s: float,
    prefill: PrefillWork | None,
) -> Report:
    return Report(
        version=version,
        outputs=unpack(outputs),
        num_preemptions=num_preemptions,
        submit_s=submit_s,
        interrupt_s=interrupt_s,
        prefill=prefill,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Interrupt these responses. Answered by a ``Report`` with the last tokens of those that were still running."""

    responses: tuple[ResponseId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """Stop these responses and drop their tokens. Answered by ``Aborted``."""

    responses: tuple[ResponseId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborted:
    lengths: tuple[tuple[ResponseId, int], ...]
    """Each response with its length; 0 if an earlier report said that it had ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Release weights and KV cache. Answered by ``Released``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """Pull the newest weights. Answered by ``Pulled`` or ``PullFailed``."""

    version: Version
    """Oldest version that is acceptable."""
    channel: ChannelAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    version: Version
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PullFailed:
    """The channel cannot be read, because its writer has ended or a new writer has not published yet."""

    reason: str


POLICY = "policy"
"""Name of the only model that runs train at present."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInit:
    """A model that a training worker holds. Each has its own optimizer, version and weight channel."""

    name: str
    model_path: Path
    checkpoint: Path | None
    """Checkpoint to continue from; None: start from the model itself."""
    model: ModelSettings
    trainer: TrainerSettings
    algorithm: AlgorithmSettings
    temperature: float
    max_response_length: int
    max_steps: int
    seed: int
    channel_name: str
    is_colocated: bool = False
    """Rollout and training take turns on the device, so memory that a step has used is given back after it."""
    leaves_between_pieces: bool = False
    """Memory that a piece of a step has used is given back before the next piece."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingInit:
    """First message to the training worker. Answered by ``TrainingReady``.

    Every later message names a model. The worker does one thing after the other, and answers in that order; only
    ``Published`` may come later.
    """

    models: tuple[ModelInit, ...]
    rank: int = 0
    """Which of the workers of a group this is. They train the same models together and get the same messages."""
    num_shards: int = 1
    num_replicas: int = 1
    tensor_parallel_size: int = 1

    @property
    def num_ranks(self) -> int:
        return self.num_shards * self.num_replicas * self.tensor_parallel_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where the workers of a group meet. The first one says it, and the controller tells the others."""

    host: str
    port: int
    key: str
    """Only who knows it is let in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReady:
    name: str
    version: Version
    channel: ChannelAddress | None
    """Where published weights can be pulled from; None for a worker that does not publish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingReady:
    models: tuple[ModelReady, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulate:
    """Add the gradients of whole groups to the step from ``version``. Answered by ``Accumulated`` or ``Refused``."""

    model: str
    version: Version
    batch: Batch
    piece: int = 0
    """Number of this piece within its step. The answer carries it."""
    loss: AlgorithmSettings | None = None
    """None: those of ``ModelInit``."""
    replicas: tuple[int, ...] | None = None
    """Replicas of a group that compute; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulated:
    model: str
    version: Version
    num_responses: int
    seconds: float
    piece: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DropStep:
    """Forget what was accumulated for the step from ``version``. Not answered."""

    model: str
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishStep:
    """Take the optimizer step on what was accumulated. Answered by ``StepFinished`` or ``Refused``."""

    model: str
    version: Version
    optimizer: TrainerSettings | None = None
    """None: those of ``ModelInit``."""
    rates: tuple[tuple[str, float], ...] = ()
    """Learning rates of a step that is repeated, by learner (``actor``, ``critic``); empty: those of the settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinished:
    model: str
    version: Version
    """The new version."""
    seconds: float
    """Seconds of the whole step, accumulation included."""
    metrics: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """Compute the log-probs of these responses under the model. Answered by ``LogprobsComputed`` or ``Refused``."""

    model: str
    batch: Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobsComputed:
    model: str
    version: Version
    logprobs: tuple[tuple[ResponseId, Logprobs], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Publish the weights. Answered by ``Published`` or ``Refused``, before the answer to a later ``FinishStep``."""

    model: str
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    model: str
    version: Version
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """Write a checkpoint into this directory, between two steps. Answered by ``Saved`` or ``SaveFailed``."""

    model: str
    version: Version
    directory: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    model: str
    version: Version
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveFailed:
    model: str
    version: Version
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Continue from a checkpoint; a step in progress is dropped. Answered by ``Loaded`` or ``Refused``."""

    model: str
    directory: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    model: str
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The worker cannot perform a message, for this reason."""

    reason: str
