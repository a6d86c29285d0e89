"""The sections of a cluster scenario, with their keys and defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from tailrace.cluster.ids import JobId, NodeId
from tailrace.cluster.settings import Grain, Order, Policy, Ratio
from tailrace.sim.cluster.arrivals import JobArrivals
from tailrace.sim.cluster.faults import Fault, JobCrashes, NodeFails, PhaseSlows
from tailrace.sim.cluster.step_times import Overlap
from tailrace.sim.section import ScenarioSection, Sourced

GB = 10**9


class ClusterSection(Sourced):
    """The devices, their memory and their bandwidths. ``sim/cluster/partition.py`` says how devices are divided."""

    total_devices: PositiveInt | None = None
    """All devices, for training and rollout. They are divided by the work of the mix."""
    groups: dict[str, PositiveInt] = {}
    """Node groups of each model, instead of ``total_devices``. Each job that fits has rollout devices besides."""
    devices_per_node: PositiveInt = 8
    """Devices of one node."""
    room_for_states: float = Field(default=1.0, ge=1)
    """How many times the state of a job fits on the devices of its group, beside the memory that computing needs. Above
    1, a prefetch can bring state into the devices."""
    host_gb_per_node: PositiveFloat | None = None
    """Host memory for the state of jobs; None: not limited."""
    disk_gb_per_node: PositiveFloat | None = None
    """Disk for the state of jobs; None: not limited."""
    transfer_gb_per_s: PositiveFloat
    """Bandwidth of a whole node group between devices and host memory."""
    disk_gb_per_s: PositiveFloat
    """Bandwidth of a whole node group to and from disk, and from another node group."""
    transfer_fixed_s: NonNegativeFloat = 0.0
    """Seconds that every transfer takes besides."""
    colocated_efficiency: float = Field(default=1.0, gt=0, le=1)
    """Throughput of rollout per device in the colocated regime, over that on devices of its own."""


class RuleOverrides(ScenarioSection):
    """Rules of the scheduler. A rule without a value has its default (``cluster/settings.py``)."""

    policy: Policy | None = None
    """How jobs are given node groups."""
    ratio: Ratio | None = None
    """Which waiting phase comes next."""
    grain: Grain | None = None
    """How much a grant covers."""
    order: Order | None = None
    """In which order queued jobs are considered."""
    slot_s: PositiveFloat | None = None
    """Seconds of a slot."""
    max_jobs_per_group: PositiveInt | None = None
    """Most jobs that share a node group."""
    max_duty: PositiveFloat | None = None
    """Most duty of all jobs of a group together."""
    max_wait_share: PositiveFloat | None = None
    """If a job has waited for a larger share of its time, no further job joins its group."""
    max_wait_s: PositiveFloat | None = None
    """A phase that has waited longer comes next."""
    max_queue_s: PositiveFloat | None = None
    """With order hrrs: a job that has waited longer for admission comes before the others of its tenant."""
    hold_s: NonNegativeFloat | None = None
    """Longest time that a group stays idle for a job that is expected to ask again."""
    prefetch: bool | None = None
    """Load the state of the next job while the current one computes."""
    predict_switches: bool | None = None
    """Move the state of the job that is expected next while the group is idle."""
    bucket_s: PositiveFloat | None = None
    """Shifts that differ by less count as equal."""
    interference_weight: NonNegativeFloat | None = None
    """Seconds of shift that one unit of interference is worth."""
    guard_s: NonNegativeFloat | None = None
    """Seconds around a critical segment that count as interference too."""
    drift: PositiveFloat | None = None
    """Share of its period by which a job must be late to count as drifted."""
    drift_cycles: PositiveInt | None = None
    """Periods in a row after which a drifted job is fitted again."""
    min_gain: NonNegativeFloat | None = None
    """A job is moved only if its interference falls by at least this."""


class RulesSection(Sourced, RuleOverrides):
    """The policies to compare, and the rules that they share."""

    compare: tuple[str, ...] = ("isolated", "spread-backfill")
    """Names of policies or of ``variants``."""
    variants: dict[str, RuleOverrides] = {}
    """Further sets of rules by name: those of this section with some changed."""
    tenants: dict[str, PositiveFloat] = {}
    """Weights of tenants."""


class ModelSection(Sourced):
    """A model: its devices, the size of its state, and the times of its steps, in one of three ways."""

    name: str
    train_devices: PositiveInt
    """Devices of a node group."""
    rollout_devices: NonNegativeInt
    """Devices for rollout of one job."""
    weights_gb: NonNegativeFloat = 0.0
    """Size of the weights, all devices together."""
    gradients_gb: NonNegativeFloat = 0.0
    """Size of the gradients, if ``optimizer_gb`` does not include them."""
    optimizer_gb: NonNegativeFloat = 0.0
    """Size of gradients and optimizer state that is on the devices while the job computes."""
    lazy_state: bool = False
    """Ask for log-probabilities and for the synchronization by themselves, with the weights alone; only the update
    needs the whole state on the devices."""
    host_step_s: NonNegativeFloat = 0.0
    """Seconds of an optimizer step on the host. Above 0, the optimizer's state stays there, and no device is needed."""
    cycle_s: PositiveFloat | None = None
    """Seconds of a step of a lone job. The rollout takes what the operations leave of it."""
    logprob_s: PositiveFloat | None = None
    """Seconds of computing log-probabilities."""
    update_s: PositiveFloat | None = None
    """Seconds of the optimizer step with its passes."""
    sync_s: PositiveFloat | None = None
    """Seconds of giving the new weights to the rollout devices."""
    steps: tuple[tuple[PositiveFloat, ...], ...] = ()
    """Steps that repeat, each as [rollout seconds, seconds of each operation ...], instead of the four keys above."""
    trace: Path | None = None
    """JSON file with such steps under the key ``steps``, relative to the scenario file."""


class JobsSection(Sourced):
    count: PositiveInt
    """Number of jobs."""
    arrivals: JobArrivals = JobArrivals.BACKLOG
    """When jobs are submitted."""
    load: PositiveFloat | None = None
    """Arrival rate as a multiple of what the cluster can finish under ``isolated``, for the model that is short of
    groups first."""
    rate_per_hour: PositiveFloat | None = None
    """Jobs per hour, instead of ``load``."""
    burst_size: PositiveInt = 5
    """``bursty``: jobs of a burst."""
    mix: dict[str, NonNegativeFloat]
    """Share of each model among the jobs."""
    min_steps: PositiveInt = 100
    """Optimizer steps of a job: at least this many,..."""
    max_steps: PositiveInt = 500
    """...and at most this many, all equally likely."""
    overlap: Overlap = Overlap.ONE_STEP
    """Whether jobs generate while they train."""
    jitter: float = Field(default=0.0, ge=0, lt=1)
    """Standard deviation of the time of every rollout and operation, as a share of it (log-normal)."""
    known_share: float = Field(default=1.0, ge=0, le=1)
    """Share of the jobs whose demand is known from an earlier run. The others are profiled first."""
    tenants: dict[str, PositiveFloat] = {}
    """Share of each tenant among the jobs; empty: one tenant."""


class ClusterFaultSection(ScenarioSection):
    source: str = ""
    """Where the numbers of this section come from."""
    kind: Literal["node", "crash", "slow"]
    """``node``: a node is lost and returns. ``crash``: a job fails for good. ``slow``: one phase takes longer."""
    at: NonNegativeFloat
    """Second at which the fault happens."""
    node: str = ""
    """``node``: its name, MODEL-GROUP/NODE, such as 7B-0/0."""
    down_s: NonNegativeFloat = 0.0
    """``node``: seconds until it returns."""
    job: NonNegativeInt = 0
    """``crash`` and ``slow``: number of the job, in the order of submission."""
    factor: PositiveFloat = 10.0
    """``slow``: how many times longer the phase takes."""

    def fault(self, jobs: tuple[JobId, ...]) -> Fault:
        """Return the fault as the simulator uses it. ``jobs``: ids of all jobs, by number."""
        match self.kind:
            case "node":
                return NodeFails(at=self.at, node=NodeId(self.node), down_s=self.down_s)
            case "crash":
                return JobCrashes(at=self.at, job=jobs[self.job])
            case "slow":
                return PhaseSlows(at=self.at, job=jobs[self.job], factor=self.factor)
