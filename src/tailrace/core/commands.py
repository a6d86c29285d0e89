"""Commands: what the core asks its driver to do. They are the core's only output. Each names the event that ends it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tailrace.core.ids import GroupId, InstanceId, ResponseId, Version
from tailrace.core.outcomes import Part


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
    incarnation: int = 0
    """Number of this start. The events of the instance may carry it."""
    size: int = 0
    """Devices on which it divides its model; 0: as many as the settings of the run say."""
    devices: tuple[int, ...] = ()
    """The positions of these devices among those of rollout; empty with size 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopInstance(Command):
    """End an instance that has no work, because it is retired or parked. Ends in ``InstanceStopped`` or
    ``InstanceLost``."""

    instance: InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class KillInstance(Command):
    """End an instance that no longer answers. Ends in ``InstanceLost``."""

    instance: InstanceId
    reason: str


class Dispatch(NamedTuple):
    """A response that an instance shall generate."""

    response: ResponseId
    start: int
    """Number of tokens it already has. Generation continues after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit(Command):
    """Generate these responses. Each ends in ``RolloutReported``, or all in ``InstanceLost``."""

    instance: InstanceId
    dispatches: tuple[Dispatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt(Command):
    """Stop these responses and report all their tokens, so that they can continue later.

    Each ends in ``RolloutReported``, with finish INTERRUPTED unless it ended by itself before, or all in
    ``InstanceLost``.
    """

    instance: InstanceId
    responses: tuple[ResponseId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort(Command):
    """Stop these responses, drop their tokens and release their memory. Ends in ``ResponsesAborted`` or
    ``InstanceLost``."""

    instance: InstanceId
    responses: tuple[ResponseId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseMemory(Command):
    """Release the memory of an idle instance, so that training can use it. Ends in ``MemoryReleased`` or
    ``InstanceLost``."""

    instance: InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class PullWeights(Command):
    """Load a published version into an idle instance, which takes its memory again if it was released.

    Ends in ``WeightsPulled``, ``PullFailed`` or ``InstanceLost``.
    """

    instance: InstanceId
    version: Version


class CaseLimits(NamedTuple):
    """Seconds that each test case of one response may run."""

    others_s: float
    """The limit of every case that ``cases`` does not name."""
    cases: tuple[tuple[int, float], ...] = ()
    """Pairs (case, seconds), by case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score(Command):
    """Compute one part of the scores of these responses. Each ends in ``ResponsesScored``, whatever happens."""

    responses: tuple[ResponseId, ...]
    part: Part = Part.FUNCTION
    limits: tuple[CaseLimits, ...] = ()
    """How long the test cases of each response may run; empty: as long as the reward's own limit says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitCases(Command):
    """New time limits for the test cases of responses to one problem, whose ``Score`` carried older ones. They hold for
    those that no worker has yet. No event follows."""

    responses: tuple[ResponseId, ...]
    limits: CaseLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortScores(Command):
    """Stop computing this part of these scores. Each ends in ``ResponsesScored``, with outcome ABORTED unless it was
    scored before."""

    responses: tuple[ResponseId, ...]
    part: Part = Part.FUNCTION


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRound(Command):
    """Report that the round for the batch of step ``round`` begins. The driver does nothing; no event follows."""

    round: int
    is_long: bool
    version: Version
    """Oldest version that may generate tokens for it."""
    num_prompts: int = 0
    """Groups it launches; 0 in journals of older releases."""
    num_responses: int = 0
    """Responses with which each group begins."""
    resumed: tuple[GroupId, ...] = ()
    """Interrupted or deferred groups that continue with the tokens they have."""
    restarted: tuple[GroupId, ...] = ()
    """Deferred groups that start again from their prompts."""
    parallel_size: int = 0
    """Devices of each instance that generates it; 0: as many as the settings of the run say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnToSize(Command):
    """Report that the present round goes on with another parallel size, because no instance of the one in use can be
    started. No event follows."""

    parallel_size: int
    broken_size: int
    reason: str
    """Why the last one of them was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseRound(Command):
    """Report that the batch of step ``round`` is complete, and what happened to every group of the round. No event
    follows."""

    round: int
    is_long: bool
    accepted: tuple[GroupId, ...]
    """Groups of the batch."""
    deferred: tuple[GroupId, ...] = ()
    """Groups that joined the long queue."""
    late: tuple[GroupId, ...] = ()
    """Unfinished groups that started late in the round, so they need not be long. The next short round takes them
    first."""
    dropped: tuple[GroupId, ...] = ()
    """Groups that will not be trained."""
    interrupted: tuple[GroupId, ...] = ()
    """Groups that keep their tokens and continue in a later round."""
    kept: tuple[GroupId, ...] = ()
    """Complete groups that were not needed for this batch. The next batch takes them first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDropped(Command):
    """Report groups and responses that will not be trained, and groups that start again. The driver does nothing; no
    event follows."""

    filtered: tuple[GroupId, ...] = ()
    """Groups whose scores are all equal."""
    dropped: tuple[GroupId, ...] = ()
    """Groups of which no response could be scored, that can no longer be trained within the staleness bound, or whose
    evaluation set the run no longer has."""
    responses: tuple[ResponseId, ...] = ()
    """Surplus members of complete groups that no worker was generating or scoring, so that no other command names
    them."""
    restarted: tuple[GroupId, ...] = ()
    """Groups that start again from their prompts: training waited too long for them, or their tokens are too old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTrainer(Command):
    """Start the trainer from the newest checkpoint, and repeat the steps after it up to the run's version.

    Each version on the way is reported by ``TrainerReached``. Ends in ``TrainerReached`` of the run's version,
    ``TrainerLost`` or ``TrainingFailed``.
    """

    incarnation: int = 0
    """Number of this start. The events of the trainer may carry it. 0: starts are not numbered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillTrainer(Command):
    """End a trainer that no longer answers. Ends in ``TrainerLost``."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulate(Command):
    """Add the gradients of these responses, which are whole groups, to the step from ``version``.

    Ends in ``GradientsAccumulated``, ``TrainerLost`` or ``TrainingFailed``.
    """

    version: Version
    responses: tuple[ResponseId, ...]
    scores: tuple[float, ...]
    truncated: tuple[ResponseId, ...] = ()
    """Responses that ended because their token budget was used up."""
    oldest: tuple[Version, ...] = ()
    """Version of the oldest token of each response."""
    piece: int = 0
    """Number of this piece of the step, from 0 on. A step without streaming has one piece."""
    replicas: tuple[int, ...] = ()
    """Replicas of the trainer that compute it; empty: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropStep(Command):
    """Forget the gradients of the step from ``version``, because the run stops before its round ends. No event
    follows."""

    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishStep(Command):
    """Take the optimizer step from ``version`` with the accumulated gradients.

    Ends in ``StepTrained``, ``TrainerLost`` or ``TrainingFailed``.
    """

    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishWeights(Command):
    """Make the trainer's version available to instances.

    Ends in ``WeightsPublished``, ``TrainerLost`` or ``TrainingFailed``.
    The next step may be requested before that: its optimizer step waits until the version is published.
    """

    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCheckpoint(Command):
    """Write a checkpoint with the current state of the trainer and of the core.

    Ends in ``CheckpointSaved``, ``CheckpointFailed``, ``CheckpointSkipped`` or ``TrainerLost``.
    """

    version: Version
    may_skip: bool = False
    """Whether the checkpoint is skipped if the disk has no room for it. If it may not be skipped, the run fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseEvaluation(Command):
    """Report that the evaluation of ``version`` on this set is complete. Its responses are no longer needed. No event
    follows."""

    version: Version
    source: str
    groups: tuple[GroupId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer(Command):
    """Send ``TimerFired`` at time ``at``. Replaces an earlier timer."""

    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishRun(Command):
    """End the run. No event follows."""

    is_complete: bool
    reason: str
