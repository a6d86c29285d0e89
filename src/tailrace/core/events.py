"""Events: what has happened. They are the core's only input.

The docstring of each event names the command that it answers. Adapters turn every failure into an event. Events hold
metadata only: ids, counts, lengths, versions, outcomes.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.core.costs import CostModel, PrefillWork
from tailrace.core.ids import InstanceId, ResponseId, Version
from tailrace.core.outcomes import Outcome, Part
from tailrace.core.responses.response import Finish
from tailrace.core.schedule import Limits, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """A new run. Always the first event of a journal."""

    schedule: Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResumed(Event):
    """The run continues after its processes ended. No earlier command will be answered any more."""

    limits: Limits
    """Time limits from now on."""
    checkpoint: Version | None
    """Version of the newest complete checkpoint on disk; None: there is none."""
    schedule: Schedule | None = None
    """The schedule from now on (`Schedule.continued`); None, in journals of older releases: as before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested(Event):
    """A user or a signal asked the run to stop."""

    reason: str
    saves: bool = False
    """True: the run first ends the step and the checkpoint in progress, and saves. False: it ends at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptsOffered(Event):
    """Prompts to work on, and the new position of the source's cursor. Answers ``RequestPrompts``."""

    source: str
    prompts: tuple[tuple[int, int], ...]
    """(epoch, prompt index) of each prompt."""
    next_epoch: int
    next_offset: int
    domains: tuple[str, ...] = ()
    """Name of the mixed source that each prompt comes from; empty if there is only one source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceAdded(Event):
    """The fleet has one more instance. The core starts it."""

    instance: InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRetired(Event):
    """An instance shall leave the fleet. Its responses continue on other instances."""

    instance: InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceEvent(Event):
    """Base class of the events of rollout instances."""

    instance: InstanceId
    incarnation: int | None = None
    """``StartInstance.incarnation`` of the process that reports. None: the adapter never delivers a report of an
    earlier process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceStarted(InstanceEvent):
    """The instance holds the weights of ``version`` and accepts work. Answers ``StartInstance``."""

    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceLost(InstanceEvent):
    """The instance has ended, and its unreported work is lost. Answers ``KillInstance``; ends every other command to
    the instance."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceStopped(InstanceEvent):
    """A retired or parked instance has ended. Answers ``StopInstance``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """Tokens of an unfinished response up to ``length`` are in the payload store."""

    response: ResponseId
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A response ended with ``length`` tokens, all of them in the payload store."""

    response: ResponseId
    length: int
    finish: Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutReported(InstanceEvent):
    """Progress of an instance since its last report. Answers ``Submit`` and ``Interrupt``, one response at a time."""

    version: Version
    progressed: tuple[Progressed, ...] = ()
    finished: tuple[Finished, ...] = ()
    num_preemptions: int = 0
    """Preemptions since the instance started."""
    submit_s: float = 0.0
    """Seconds that accepting new responses took since the last report, prefill not included."""
    interrupt_s: float = 0.0
    """Seconds that interrupting responses took since the last report."""
    prefill: PrefillWork | None = None
    """Prefill since the instance started; None: the engine does not measure it."""
    num_refused: int = 0
    """Number of responses that the instance reported and that are left out of this event: their tokens were reported
    before, or the instance was not asked for them."""

    @property
    def parts(self) -> tuple[Progressed | Finished, ...]:
        """Every response in the report, with its current length."""
        return (*self.progressed, *self.finished)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostsMeasured(Event):
    """The measured speed of instances differs from the cost model; ``costs`` is the new one. Answers no command."""

    costs: CostModel
    error: float
    """Mean relative error of the old cost model in tokens per second, on the instance where it was largest."""
    fitted_error: float
    """Mean relative error of the new cost model, on the steps it was fitted to."""
    size: int = 0
    """Parallel size of these instances; 0: the schedule knows no sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborted:
    """A response that was aborted with ``length`` tokens; 0 if an earlier report said that it had ended."""

    response: ResponseId
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesAborted(InstanceEvent):
    """The instance has aborted these responses and will not report them again. Answers ``Abort``."""

    aborted: tuple[Aborted, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReleased(InstanceEvent):
    """The instance has released its weights and its KV cache until it pulls again. Answers ``ReleaseMemory``."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One part of the score of one response."""

    response: ResponseId
    outcome: Outcome
    score: float
    """What it adds to the score of the response: weights are applied already."""
    seconds: float
    """How long it was computed."""
    queued_s: float = 0.0
    """How long it waited before."""
    extras: tuple[tuple[str, float], ...] = ()
    """Further numbers the reward function returned."""
    detail: str = ""
    """What went wrong, if the reward failed."""
    is_correct: bool = False
    """Whether it passed every test case. False if its reward has none."""
    slow_cases: tuple[tuple[int, float], ...] = ()
    """Pairs (case, seconds) of a correct response, where the time can change a limit (`CaseTime.slow_s`)."""
    cut_cases: tuple[tuple[int, float], ...] = ()
    """Pairs (case, limit) in which it ran out of time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesScored(Event):
    """One part of some scores was computed, failed or was aborted. Answers ``Score`` and ``AbortScores``, one response
    at a time."""

    scores: tuple[Scored, ...]
    part: Part = Part.FUNCTION


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerEvent(Event):
    """Base class of the events of the trainer."""

    incarnation: int | None = None
    """``StartTrainer.incarnation`` of the process that reports. None: the adapter never delivers a report of an earlier
    process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerReached(TrainerEvent):
    """The trainer holds ``version``: it has loaded a checkpoint or repeated a step. Answers ``StartTrainer``."""

    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientsAccumulated(TrainerEvent):
    """The gradients of a piece were added to the step from ``version``. Answers ``Accumulate``."""

    version: Version
    num_responses: int
    seconds: float
    piece: int = 0
    """Number of the piece within the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrained(TrainerEvent):
    """One optimizer step is complete; the trainer holds ``version``. Answers ``FinishStep``.

    A version that was being published when the step was requested is published before this event.
    """

    version: Version
    seconds: float
    """Seconds of the whole step, accumulation included."""
    metrics: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerLost(TrainerEvent):
    """The trainer process has ended, and its weights are lost. Answers ``KillTrainer``; ends every other command to the
    trainer."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFailed(TrainerEvent):
    """The trainer cannot perform a command. Answers any command to the trainer except ``SaveCheckpoint``."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsPublished(TrainerEvent):
    """Instances can pull ``version``. Answers ``PublishWeights``."""

    version: Version
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsPulled(InstanceEvent):
    """The instance now samples from ``version``. Answers ``PullWeights``."""

    version: Version
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PullFailed(InstanceEvent):
    """The instance could not pull: the published weights were lost with the trainer. Answers ``PullWeights``."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(TrainerEvent):
    """The checkpoint is complete on disk. Answers ``SaveCheckpoint``."""

    version: Version
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed(TrainerEvent):
    """The checkpoint could not be written. Answers ``SaveCheckpoint``."""

    version: Version
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSkipped(TrainerEvent):
    """There is no room for the checkpoint, and nothing of it was written. Answers ``SaveCheckpoint``."""

    version: Version
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired(Event):
    """The time of the last ``SetTimer`` has come. Answers ``SetTimer``."""
