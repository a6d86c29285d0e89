"""Facts: what has happened, in the past tense. The only input of the core.

Every event says which command it answers and reports what really happened. Adapters turn every failure
into an event. Events carry metadata only: ids, counts, lengths, versions, outcomes.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.core.costs import CostModel, PrefillWork
from tailrace.core.ids import InstanceId, TrajectoryId, Version
from tailrace.core.outcomes import Outcome
from tailrace.core.schedule import Limits, Schedule
from tailrace.core.trajectory import Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """A new run. Always the first event of a journal."""

    schedule: Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResumed(Event):
    """The run goes on after its processes ended. Nothing asked for earlier will be answered any more."""

    limits: Limits
    """How long waits may last from here on: the one thing that may change when a run is resumed."""
    checkpoint: Version | None
    """The newest checkpoint that is complete on disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested(Event):
    """Somebody asked the run to stop here."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptsOffered(Event):
    """Prompts to work on, and where the source's cursor stands now. Answers ``RequestPrompts``."""

    source: str
    prompts: tuple[tuple[int, int], ...]
    """(epoch, prompt index) of each."""
    next_epoch: int
    next_offset: int
    domains: tuple[str, ...] = ()
    """Which of several mixed sources each prompt comes from; empty when there is only one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceStarted(Event):
    """The instance holds the weights of ``version`` and accepts work. Answers ``StartInstance``."""

    instance: InstanceId
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceLost(Event):
    """The instance is gone, with all work that was not reported. Answers ``KillInstance`` and may end any other."""

    instance: InstanceId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """Tokens of an unfinished response up to ``length`` are in the payload store."""

    trajectory: TrajectoryId
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A response ended with ``length`` tokens, all of them in the payload store."""

    trajectory: TrajectoryId
    length: int
    finish: Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutReported(Event):
    """What an instance did since its last report. Answers ``Submit`` and ``Interrupt``, one response at a time."""

    instance: InstanceId
    version: Version
    progressed: tuple[Progressed, ...] = ()
    finished: tuple[Finished, ...] = ()
    num_preemptions: int = 0
    """Since the instance started."""
    submit_s: float = 0.0
    """Seconds it took, since the last report, to take responses in; their prefill is not part of it."""
    interrupt_s: float = 0.0
    """The same, to stop them."""
    prefill: PrefillWork | None = None
    """Since the instance started; None: it does not measure that."""

    @property
    def parts(self) -> tuple[Progressed | Finished, ...]:
        """Every response it tells of, with the tokens that has by now."""
        return (*self.progressed, *self.finished)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostsMeasured(Event):
    """Instances turned out to generate at another pace than expected; this is how fast they are. Answers nothing."""

    costs: CostModel
    error: float
    """Mean error of the costs before in tokens per second, as a share, on the instance where it was worst."""
    fitted_error: float
    """The same of these, on the steps they were fitted to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborted:
    """A response that was given up with ``length`` tokens, or 0 if it had ended, as an earlier report told."""

    trajectory: TrajectoryId
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesAborted(Event):
    """The instance has forgotten these; it will not speak of them again. Answers ``Abort``."""

    instance: InstanceId
    aborted: tuple[Aborted, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReleased(Event):
    """The instance holds no weights and no cache until it pulls again. Answers ``ReleaseMemory``."""

    instance: InstanceId
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    trajectory: TrajectoryId
    outcome: Outcome
    score: float
    seconds: float
    """Run time of the reward function."""
    extras: tuple[tuple[str, float], ...] = ()
    """Further numbers the reward function returned."""
    detail: str = ""
    """What went wrong, if something did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesScored(Event):
    """Rewards are back. Answers ``Score`` and ``CancelScores``, one response at a time."""

    scores: tuple[Scored, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerReached(Event):
    """The trainer holds ``version``: it has loaded it, or taken a step again. Answers ``StartTrainer``."""

    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrained(Event):
    """One optimizer step is complete; the trainer holds ``version``. Answers ``TrainStep``.

    Whatever was being published when the step was asked for is published before this.
    """

    version: Version
    seconds: float
    metrics: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFailed(Event):
    """The trainer is gone or refused the step. Answers ``StartTrainer``, ``TrainStep`` and ``PublishWeights``."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsPublished(Event):
    """Instances can pull ``version``. Answers ``PublishWeights``."""

    version: Version
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsPulled(Event):
    """The instance now samples from ``version``. Answers ``PullWeights``."""

    instance: InstanceId
    version: Version
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(Event):
    """The checkpoint is complete on disk. Answers ``SaveCheckpoint``."""

    version: Version
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed(Event):
    """The checkpoint could not be written. Answers ``SaveCheckpoint``."""

    version: Version
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired(Event):
    """The time of ``SetTimer`` has come."""
