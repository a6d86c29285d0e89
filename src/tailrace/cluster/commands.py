"""Commands: what the scheduler decided. A driver carries them out in order."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.cluster.ids import JobId, NodeGroupId
from tailrace.cluster.job_spec import ALL_PARTS, Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Base class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place(Command):
    """The job belongs to this node group from now on."""

    job: JobId
    group: NodeGroupId
    shift_s: float
    """Seconds from now at which its first period begins, so that its phases fall into the free time of the others."""
    is_dedicated: bool = False
    """Nobody shares the group with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit(Command):
    """The job may start. It has its rollout devices."""

    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse(Command):
    """The job can never run here, or its name is taken."""

    job: JobId
    reason: str
    is_name_taken: bool = False
    """Another job of this name is queued or runs. That one goes on; the one that was submitted last is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload(Command):
    """Move what is there of the job's state out of the devices of its group. Ends in ``TransferMeasured``."""

    job: JobId
    group: NodeGroupId
    transfer: int
    """Number of the transfer, counted over all transfers of the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(Command):
    """Move parts of the job's state into the devices of its group, after the ``Offload`` before it. Ends in
    ``TransferMeasured``."""

    job: JobId
    group: NodeGroupId
    transfer: int
    parts: Parts = ALL_PARTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefetch(Command):
    """Bring parts of the job's state as near to the devices as there is room, while another job computes, or the job
    itself with other parts. Ends in ``TransferMeasured``."""

    job: JobId
    group: NodeGroupId
    transfer: int
    parts: Parts = ALL_PARTS


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantLease(Command):
    """The job may run this many operations of the phase that it asked for. Ends in ``PhaseEnded``."""

    job: JobId
    group: NodeGroupId
    num_operations: int
    lease: int = 0
    """Number of the lease, counted over all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold(Command):
    """The group stays idle for this job until then, unless it asks earlier."""

    job: JobId
    group: NodeGroupId
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Move(Command):
    """The job belongs to another node group from now on. Its state leaves the devices of the source before any later
    command for that group is carried out, and is loaded on the target with its next phase."""

    job: JobId
    source: NodeGroupId
    target: NodeGroupId
    shift_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake(Command):
    """Send ``TimePassed`` at this time. A later ``Wake`` replaces this one."""

    at: float
