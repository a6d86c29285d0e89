"""Events: what has happened. They are the scheduler's only input. Each names the command that it answers, if any."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tailrace.cluster.checks import finite
from tailrace.cluster.demand.trace import DemandTrace
from tailrace.cluster.ids import JobId, NodeGroupId, NodeId
from tailrace.cluster.job_spec import JobSpec, Parts
from tailrace.cluster.settings import ClusterRules, NodeGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStarted(Event):
    """Always the first event of a journal."""

    rules: ClusterRules
    groups: tuple[NodeGroup, ...]
    rollout_devices: int = 0
    """Devices for rollout. Jobs take their share for themselves."""

    def __post_init__(self) -> None:
        finite(0, rollout_devices=self.rollout_devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted(Event):
    """Answered by ``Place`` and ``Admit``, at once or later, or at once by ``Refuse``."""

    job: JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProfiled(Event):
    """A clean period of the job has been seen, or its demand has changed."""

    job: JobId
    trace: DemandTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseAsked(Event):
    """A job is ready for the operations of a phase, one after the other. It asks for one phase at a time."""

    job: JobId
    operations_s: tuple[float, ...]
    """Estimated seconds of each operation that is left of the phase."""
    slack_s: float = 0.0
    """Seconds for which the phase can wait without making the job slower."""
    parts: Parts | None = None
    """Parts of its state that must be on the devices; None: all but those that stay on the host. A phase that only
    reads the weights need not wait for the optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEnded(Event):
    """The granted operations are done. Answers ``GrantLease``."""

    job: JobId
    seconds: float
    failed: bool = False
    lease: int = 0
    """Number of the lease; 0: the job's present one. A report about an earlier one is ignored."""
    next_in_s: float | None = None
    """Seconds after which the job expects to ask again; None: not soon."""


class Direction(StrEnum):
    OFFLOAD = "offload"
    LOAD = "load"
    PREFETCH = "prefetch"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferMeasured(Event):
    """A transfer of a job's state is complete. Answers ``Offload``, ``Load`` and ``Prefetch``."""

    job: JobId
    group: NodeGroupId
    transfer: int
    """Number of the transfer, from its command. A report about an earlier transfer is ignored."""
    direction: Direction
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost(Event):
    node: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReturned(Event):
    node: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded(Event):
    """The job has finished, failed or been cancelled. Nothing of it is left on its node group."""

    job: JobId
    reason: str = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePassed(Event):
    """The time that the last ``Wake`` named has come."""
