"""Runs one set of rules of a cluster scenario, and what came of it.

Words of the figures:

    alone_s         seconds that the job takes with a node group to itself, with the same times of every part
    wait_s          from submission to the start of the first period
    wait ratio      wait_s / alone_s. The denominator does not depend on the policy, so policies can be compared.
    slowdown        (ended - started) / alone_s
    device hours    what jobs pay for (``meter.py``): their part of a node group's time, and their rollout devices from
                    admission to end
    alone           the same steps with a whole node group and rollout devices for each job, all the time (split-async)
    colocated       one set of ``train_devices`` devices generates, then trains, and moves the optimizer in and out:
                    train_devices * (rollout_s * rollout_devices / (train_devices * efficiency) + training + setup)
    switch          a lease for another job than the one before it on the same node group
    utilisation     share of the node groups' device-time until the last job's end in which a job computed
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import fmean

from tailrace.cluster.events import ClusterStarted
from tailrace.cluster.job_spec import StatePart
from tailrace.sim.cluster.driver import ClusterScheduler, Driver, Record
from tailrace.sim.cluster.group_memory import Bandwidths
from tailrace.sim.cluster.job_model import JobPlan, SimJob
from tailrace.sim.cluster.scenario import ClusterScenario, Setup
from tailrace.sim.cluster.sim_group import WorkSpan
from tailrace.sim.cluster.step_times import alone_s
from tailrace.sim.cluster.world import World

HOUR_S = 3600.0
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    id: str
    model: str
    submitted: float
    started: float | None
    """None: it was refused, or crashed before it could start."""
    ended: float
    reason: str
    steps: int
    """Complete steps."""
    wait_s: float
    alone_s: float
    slowdown: float | None
    """None: the job is not complete."""
    lease_wait_s: float
    """Seconds in which a phase was asked for and did not run."""
    device_hours: float
    alone_device_hours: float
    colocated_device_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFigures:
    makespan_s: float
    num_jobs: int
    num_complete: int
    num_steps: int
    num_events: int
    devices: int
    num_groups: int
    device_hours_per_step: float
    train_device_hours: float
    rollout_device_hours: float
    alone_device_hours_per_step: float
    """For the same complete steps."""
    colocated_device_hours_per_step: float
    saving: float
    """Share of device-hours saved beside ``alone``."""
    busy_device_hours: float
    """Device-hours in which jobs used node groups."""
    reserved_device_hours: float
    """Device-hours of idle node groups that jobs belong to, and of rollout devices."""
    billed_device_hours: float
    """Sum over jobs. Always the sum of the two before it."""
    mean_slowdown: float
    max_slowdown: float
    wait_ratio: dict[str, float]
    """Quantiles of the wait ratio."""
    switches_per_step: float
    bytes_moved: int
    utilisation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterResult:
    scenario: str
    policy: str
    seed: int
    groups: tuple[tuple[str, int], ...]
    """Name and devices of every node group."""
    spans: tuple[WorkSpan, ...]
    jobs: tuple[JobFigures, ...]
    figures: ClusterFigures

    @property
    def is_complete(self) -> bool:
        return self.figures.num_complete == self.figures.num_jobs

    def to_dict(self) -> dict[str, object]:
        return {
            "scenario": self.scenario,
            "policy": self.policy,
            "seed": self.seed,
            "groups": [{"id": name, "devices": devices} for name, devices in self.groups],
            "spans": [asdict(span) for span in self.spans],
            "jobs": [asdict(job) for job in self.jobs],
            "figures": asdict(self.figures),
        }


def simulate_cluster(
    scenario: ClusterScenario,
    name: str,
    make_scheduler: Callable[[ClusterStarted], ClusterScheduler],
    *,
    record: Record | None = None,
) -> ClusterResult:
    """Run the rules called ``name``. ``record`` is called with every event and the commands that answer it."""
    setup = scenario.setup(name)
    driver = Driver(
        setup.first, make_scheduler, setup.plans, bandwidths=setup.bandwidths, faults=setup.faults, record=record
    )
    driver.run()
    world = driver.world
    efficiency = scenario.cluster.colocated_efficiency
    jobs = tuple(_job_figures(job, world, setup.bandwidths, efficiency) for job in world.jobs.values())
    return ClusterResult(
        scenario=scenario.name,
        policy=name,
        seed=scenario.seed,
        groups=tuple((group.id, group.facts.devices) for group in world.groups.values()),
        spans=tuple(sorted((span for group in world.groups.values() for span in group.spans), key=lambda s: s.start)),
        jobs=jobs,
        figures=_figures(jobs, world, setup, driver.num_events),
    )


def _job_figures(job: SimJob, world: World, bandwidths: Bandwidths, efficiency: float) -> JobFigures:
    plan, spec = job.plan, job.plan.spec
    assert job.ended is not None
    load_s = _load_s(plan, bandwidths)
    alone = alone_s(plan.steps, plan.overlap, load_s=load_s, host_step_s=plan.use.host_step_s)
    is_complete = job.steps_done == len(plan.steps)
    started = None if job.started is None or job.started > job.ended else job.started
    share = job.steps_done / len(plan.steps)
    train_s = sum(group.meter.devices * group.meter.billed_s.get(job.id, 0.0) for group in world.groups.values())
    return JobFigures(
        id=job.id,
        model=plan.model,
        submitted=plan.submitted,
        started=started,
        ended=job.ended,
        reason=job.reason,
        steps=job.steps_done,
        wait_s=(job.ended if started is None else started) - plan.submitted,
        alone_s=alone,
        slowdown=(job.ended - job.started) / alone if is_complete and job.started is not None else None,
        lease_wait_s=job.waited_s,
        device_hours=(train_s + _rollout_device_s(job, world)) / HOUR_S,
        alone_device_hours=share * (spec.train_devices + spec.rollout_devices) * alone / HOUR_S,
        colocated_device_hours=_colocated_device_s(job, bandwidths, efficiency) / HOUR_S,
    )


def _load_s(plan: JobPlan, bandwidths: Bandwidths) -> float:
    """Return the seconds of the first load, from host memory."""
    total = plan.spec.state.of(plan.spec.device_parts)
    return bandwidths.fixed_s + total / bandwidths.device if total else 0.0


def _rollout_device_s(job: SimJob, world: World) -> float:
    if job.id not in world.admitted_at:
        return 0.0
    assert job.ended is not None
    return job.plan.spec.rollout_devices * (job.ended - world.admitted_at[job.id])


def _colocated_device_s(job: SimJob, bandwidths: Bandwidths, efficiency: float) -> float:
    spec, done = job.plan.spec, job.plan.steps[: job.steps_done]
    moved = spec.state.of(part for part in spec.device_parts if part is not StatePart.WEIGHTS)
    setup_s = 2 * (bandwidths.fixed_s + moved / bandwidths.device) if moved else 0.0
    setup_s += job.plan.use.host_step_s
    rollout_device_s = spec.rollout_devices * sum(step.rollout_s for step in done) / efficiency
    return rollout_device_s + spec.train_devices * sum(step.group_s + setup_s for step in done)


def _figures(jobs: tuple[JobFigures, ...], world: World, setup: Setup, num_events: int) -> ClusterFigures:
    groups = list(world.groups.values())
    makespan_s = max(job.ended for job in jobs)
    num_steps = sum(job.steps for job in jobs)
    per_step = 1 / max(1, num_steps)
    slowdowns = [job.slowdown for job in jobs if job.slowdown is not None]
    rollout_h = sum(_rollout_device_s(job, world) for job in world.jobs.values()) / HOUR_S
    busy_h = sum(group.meter.devices * group.meter.busy_s for group in groups) / HOUR_S
    idle_h = sum(group.meter.devices * group.meter.reserved_s for group in groups) / HOUR_S
    billed_h = sum(job.device_hours for job in jobs)
    alone_h = sum(job.alone_device_hours for job in jobs)
    computed_s = sum(
        group.meter.devices * (span.end - span.start)
        for group in groups
        for span in group.spans
        if span.kind == "train"
    )
    ratios = sorted(job.wait_s / job.alone_s for job in jobs if job.started is not None)
    return ClusterFigures(
        makespan_s=makespan_s,
        num_jobs=len(jobs),
        num_complete=len(slowdowns),
        num_steps=num_steps,
        num_events=num_events,
        devices=setup.partition.devices,
        num_groups=len(groups),
        device_hours_per_step=billed_h * per_step,
        train_device_hours=busy_h + idle_h,
        rollout_device_hours=rollout_h,
        alone_device_hours_per_step=alone_h * per_step,
        colocated_device_hours_per_step=sum(job.colocated_device_hours for job in jobs) * per_step,
        saving=1 - billed_h / alone_h if alone_h else 0.0,
        busy_device_hours=busy_h,
        reserved_device_hours=idle_h + rollout_h,
        billed_device_hours=billed_h,
        mean_slowdown=fmean(slowdowns) if slowdowns else 0.0,
        max_slowdown=max(slowdowns, default=0.0),
        wait_ratio={f"{share:g}": quantile(ratios, share) for share in QUANTILES},
        switches_per_step=sum(group.num_switches for group in groups) * per_step,
        bytes_moved=sum(group.bytes_moved for group in groups),
        utilisation=computed_s / max(1e-9, makespan_s * sum(group.meter.devices for group in groups)),
    )


def quantile(ascending: list[float], share: float) -> float:
    """Return the least value that at least this share of all does not exceed; 0 if there are none."""
    if not ascending:
        return 0.0
    return ascending[max(0, -(-round(share * len(ascending) * 1e6) // 10**6) - 1)]
