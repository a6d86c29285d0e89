"""The numbers and choices that a cluster scheduler follows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tailrace.cluster.checks import above_zero, at_least, finite
from tailrace.cluster.ids import NodeGroupId, NodeId, TenantId


class Policy(StrEnum):
    """How jobs are given node groups."""

    ISOLATED = "isolated"
    """A group of its own for every job."""
    PACK = "pack"
    """The fullest group that has room for the job's duty. Phases are not fitted."""
    SPREAD = "spread"
    """A group in whose free time all phases fit, the one with the least interference."""
    SPREAD_BACKFILL = "spread-backfill"
    """Like ``spread``; while the first job in the queue waits, later ones may start if they do not delay it."""


class Ratio(StrEnum):
    """Which waiting phase comes next. W: time waited, E: execution, S: execution and switch."""

    FIRST_COME = "fcfs"
    RESPONSE = "hrrs"
    """The highest (W + S) / S."""
    EXECUTION = "hrrs-execution"
    """The highest (W + E) / S: a switch counts against a phase even before it has waited."""


class Grain(StrEnum):
    """How much a grant covers."""

    OPERATION = "operation"
    """One operation; the next one of the same phase must be asked for again."""
    PHASE = "phase"
    """All operations of a phase: a lease."""


class Order(StrEnum):
    """In which order queued jobs are considered for admission."""

    FIRST_COME = "fcfs"
    RESPONSE = "hrrs"
    """Fair queueing picks the tenant; inside a tenant the highest (W + S) / S, where S is the job's whole duration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    id: NodeGroupId
    nodes: tuple[NodeId, ...]
    devices: int
    device_bytes: int | None = None
    """Memory of all its devices together; None: not checked. The same for the next two."""
    host_bytes: int | None = None
    disk_bytes: int | None = None

    def __post_init__(self) -> None:
        finite(1, devices=self.devices)
        if not self.nodes:
            raise ValueError(f"node group {self.id} needs at least one node")
        sizes = {"device_bytes": self.device_bytes, "host_bytes": self.host_bytes, "disk_bytes": self.disk_bytes}
        finite(0, **{name: size for name, size in sizes.items() if size is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """Bandwidths that are assumed until transfers of a job have been measured, per node group."""

    bytes_per_s: float = 50e9
    fixed_s: float = 0.0

    def __post_init__(self) -> None:
        above_zero(bytes_per_s=self.bytes_per_s)
        finite(0, fixed_s=self.fixed_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRules:
    policy: Policy = Policy.SPREAD_BACKFILL
    ratio: Ratio = Ratio.RESPONSE
    grain: Grain = Grain.PHASE
    order: Order = Order.RESPONSE
    slot_s: float = 1.0
    max_jobs_per_group: int = 3
    max_duty: float = 0.8
    """Most duty of all jobs of a group together."""
    max_wait_share: float = 0.5
    """If a job of a group has waited for a larger share of its time than this, no further job joins the group."""
    max_wait_s: float = 3600.0
    """A phase that has waited longer comes next, whatever its ratio."""
    max_queue_s: float = 86_400.0
    """With ``Order.RESPONSE``: a job that has waited for admission for longer comes before the other jobs of its
    tenant, whatever its ratio. A day: most jobs take less, so ratios decide as long as the queue is not overfull."""
    hold_s: float = 0.0
    """Longest time that a group stays idle after a lease because the same job is expected to ask again: for its next
    operation, or for the next phase, such as the training that follows a synchronization at once. At most the cost of a
    switch."""
    prefetch: bool = True
    """Load the state of the next job into free memory while the current one still computes."""
    predict_switches: bool = True
    """Move the state of the job that is expected next as soon as the group is free, before the job asks."""
    bucket_s: float = 5.0
    """Shifts that differ by less than this count as equal when groups are compared."""
    interference_weight: float = 0.0
    """Seconds of shift that one unit of interference is worth (alpha of the specification)."""
    guard_s: float = 5.0
    """Seconds around a critical segment that count as interference too."""
    drift: float = 0.2
    """A job is planned again when its period or its phases are longer or shorter than planned by this share of them,
    or its phases come at other times by this share of its period..."""
    drift_cycles: int = 3
    """...in this many periods in a row."""
    min_gain: float = 0.1
    """A job that drifted is moved only if its interference falls by at least this."""
    tenants: tuple[tuple[TenantId, float], ...] = ()
    """Weights of tenants; others have weight 1."""
    transfers: Transfers = Transfers()

    def __post_init__(self) -> None:
        above_zero(slot_s=self.slot_s, max_duty=self.max_duty, drift=self.drift)
        above_zero(**{f"the weight of tenant {tenant}": weight for tenant, weight in self.tenants})
        finite(
            1,
            max_jobs_per_group=self.max_jobs_per_group,
            drift_cycles=self.drift_cycles,
        )
        finite(
            0,
            max_wait_share=self.max_wait_share,
            hold_s=self.hold_s,
            bucket_s=self.bucket_s,
            interference_weight=self.interference_weight,
            guard_s=self.guard_s,
            min_gain=self.min_gain,
        )
        at_least(0, max_wait_s=self.max_wait_s, max_queue_s=self.max_queue_s)
