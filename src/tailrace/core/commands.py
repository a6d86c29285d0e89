"""Requests: what the core wants done, in the imperative. Its only output. Each names the event that ends it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tailrace.core.ids import GroupId, InstanceId, TrajectoryId, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Base class. A driver performs commands; the core never does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPrompts(Command):
    """Offer ``count`` prompts of the source from its cursor on. Ends in ``PromptsOffered``."""

    source: str
    epoch: int
    offset: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartInstance(Command):
    """Start a rollout instance. Ends in ``InstanceStarted`` or ``InstanceLost``."""

    instance: InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class KillInstance(Command):
    """End an instance that no longer answers. Ends in ``InstanceLost``."""

    instance: InstanceId
    reason: str


class Dispatch(NamedTuple):
    trajectory: TrajectoryId
    start: int
    """Tokens it already has: generation continues there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit(Command):
    """Generate these responses. Each ends in ``RolloutReported``, or all in ``InstanceLost``."""

    instance: InstanceId
    dispatches: tuple[Dispatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt(Command):
    """Stop these responses and report every token of them; they will go on from there.

    Each ends in ``RolloutReported``, with finish INTERRUPTED unless it ended by itself before, or all in
    ``InstanceLost``.
    """

    instance: InstanceId
    trajectories: tuple[TrajectoryId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort(Command):
    """Give these responses up and free what they hold. Ends in ``ResponsesAborted`` or ``InstanceLost``."""

    instance: InstanceId
    trajectories: tuple[TrajectoryId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseMemory(Command):
    """Free the memory of an idle instance for training. Ends in ``MemoryReleased`` or ``InstanceLost``."""

    instance: InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class PullWeights(Command):
    """Load a published version into an idle instance, which takes its memory again if it was released.

    Ends in ``WeightsPulled`` or ``InstanceLost``.
    """

    instance: InstanceId
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Score(Command):
    """Compute the rewards of these responses. Each ends in ``ResponsesScored``, whatever happens."""

    trajectories: tuple[TrajectoryId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelScores(Command):
    """Nobody waits for these rewards any more. Each ends in ``ResponsesScored``, outcome CANCELLED unless it was
    scored before."""

    trajectories: tuple[TrajectoryId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRound(Command):
    """A round begins: it fills the batch of step ``round``. Says so to whoever follows the run; no event follows."""

    round: int
    is_long: bool
    version: Version
    """The oldest version that may generate it."""
    num_prompts: int = 0
    """Groups it launches; 0 in journals of older releases."""
    num_responses: int = 0
    """Responses each of them begins with."""
    resumed: tuple[GroupId, ...] = ()
    """Interrupted or deferred groups that go on with the tokens they have."""
    restarted: tuple[GroupId, ...] = ()
    """Deferred groups that begin again from their prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseRound(Command):
    """The batch of step ``round`` is complete, and this became of the rest. No event follows."""

    round: int
    is_long: bool
    accepted: tuple[GroupId, ...]
    deferred: tuple[GroupId, ...] = ()
    dropped: tuple[GroupId, ...] = ()
    interrupted: tuple[GroupId, ...] = ()
    """They keep their tokens and go on in a later round."""
    kept: tuple[GroupId, ...] = ()
    """Complete, but one too many for this batch: first in the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOut(Command):
    """These groups will not be trained, or not as they are. No event follows."""

    filtered: tuple[GroupId, ...] = ()
    """All their scores are equal."""
    dropped: tuple[GroupId, ...] = ()
    """None of their responses could be scored, or they have no place within the bound any more."""
    restarted: tuple[GroupId, ...] = ()
    """Training waited for them too long: they begin again from their prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTrainer(Command):
    """Start the trainer and bring it to the run's version, step by step where it must catch up.

    Each version on the way ends in ``TrainerReached``, or all in ``TrainingFailed``.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainStep(Command):
    """Take one optimizer step from ``version`` on the scored members of these groups.

    Ends in ``StepTrained`` or ``TrainingFailed``.
    """

    version: Version
    trajectories: tuple[TrajectoryId, ...]
    scores: tuple[float, ...]
    truncated: tuple[TrajectoryId, ...] = ()
    """Those of them that used up their token budget."""
    oldest: tuple[Version, ...] = ()
    """The oldest version that generated a token of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishWeights(Command):
    """Make the trainer's version available to instances. Ends in ``WeightsPublished`` or ``TrainingFailed``.

    The next step may be asked for meanwhile: its optimizer step waits until the version is published.
    """

    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCheckpoint(Command):
    """Write the trainer's state and the core's, as of this moment.

    Ends in ``CheckpointSaved`` or ``CheckpointFailed``.
    """

    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseEvaluation(Command):
    """The evaluation of ``version`` on this set is complete; its responses are no longer needed. No event follows."""

    version: Version
    source: str
    groups: tuple[GroupId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer(Command):
    """Wake the core at ``at``; replaces an earlier timer. Ends in ``TimerFired``."""

    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishRun(Command):
    """The run is over. No event follows."""

    is_complete: bool
    reason: str
