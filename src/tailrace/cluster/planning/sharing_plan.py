"""Which jobs share which node groups, for capacity planning: all jobs are known and begin together.

Jobs are placed one after the other, as a scheduler does with jobs whose demand is known:

* ``isolated``: a group for each;
* ``pack``: the fullest group that has room for the job's duty. Phases wait for each other;
* ``spread``: a group in whose free time all phases fit, with the least shift; or in step with jobs of about the same
  period (``in_step.py``).

A new group is opened only for a job that has no place on the others. How many are needed depends on the order of the
jobs, so several orders are tried (``job_orders.py``). The slowdown is a forecast: see ``sharing_forecast.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from statistics import fmean

from tailrace.cluster.demand.trace import DemandTrace
from tailrace.cluster.ids import JobId, NodeGroupId
from tailrace.cluster.job_spec import JobSpec
from tailrace.cluster.planning.job_orders import fewest_groups
from tailrace.cluster.planning.sharing_forecast import PeriodTime, SharingForecast, forecast
from tailrace.cluster.planning.sharing_table import Allowed, best_table, with_slots
from tailrace.cluster.settings import ClusterRules, Policy

NUM_PLAYS = 5
"""Times that the jobs of a group are played through with periods drawn from recorded ones."""
Recorded = Mapping[JobId, Sequence[PeriodTime]]
"""Periods of the runs from which the traces of jobs were made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedJob:
    job: JobSpec
    shift_s: float
    """Seconds by which its first period begins later, so that its phases fall into the free time of the others."""
    slowdowns: tuple[float, ...]
    """Forecasts: time with sharing over time alone. One if its periods are all alike, else one for each time that the
    jobs of its group were played through."""
    savings: tuple[float, ...]
    """For each of them the share of its device-hours per step that sharing saves. The devices of a group are divided
    among its jobs."""

    @property
    def slowdown(self) -> float:
        return fmean(self.slowdowns)

    @property
    def saving(self) -> float:
        return fmean(self.savings)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGroup:
    id: NodeGroupId
    devices: int
    jobs: tuple[PlacedJob, ...]
    forecast: SharingForecast

    @property
    def mean_duty(self) -> float:
        """Share of the time in which the group is in use, if nobody waits."""
        return sum(_trace(placed.job).mean_duty for placed in self.jobs)

    @property
    def duty(self) -> float:
        """Share of the time that is planned."""
        return sum(_trace(placed.job).duty for placed in self.jobs)

    @property
    def state_bytes(self) -> int:
        """Size of the states of its jobs, as far as they are known."""
        return sum(placed.job.state.total for placed in self.jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingPlan:
    policy: Policy
    groups: tuple[SharedGroup, ...]
    without_place: tuple[JobSpec, ...] = ()
    """Jobs for which the allowed number of groups has no room."""
    fewest_groups: int = 0
    """No plan can do with less groups than this. If this one needs more, it is not known whether one can do with less
    than it."""
    num_orders: int = 1
    """Orders of the jobs that were tried."""
    switch_s: float = 0.0
    """Seconds to move one job's state out of a group and another's in."""
    host_bytes: int | None = None
    """Host memory of a node group; None: not checked."""

    @property
    def jobs(self) -> list[PlacedJob]:
        return [placed for group in self.groups for placed in group.jobs]

    @property
    def devices(self) -> int:
        """Training and rollout devices of all jobs that have a place."""
        return sum(group.devices for group in self.groups) + sum(placed.job.rollout_devices for placed in self.jobs)

    @property
    def devices_alone(self) -> int:
        """Devices of the same jobs if each had a group to itself."""
        return sum(_devices(placed.job) for placed in self.jobs)

    @property
    def slowdowns(self) -> list[float]:
        """Means over the jobs, one for each time that they were played through."""
        plays = zip(*_as_many(placed.slowdowns for placed in self.jobs), strict=True)
        return [fmean(found) for found in plays] or [1.0]

    @property
    def savings(self) -> list[float]:
        """Share of the device-hours per step that is saved, all jobs together, for each time."""
        weights = [_devices(placed.job) / self.devices_alone for placed in self.jobs]
        plays = zip(*_as_many(placed.savings for placed in self.jobs), strict=True)
        return [sum(map(mul, found, weights)) for found in plays] or [0.0]

    @property
    def slowdown(self) -> float:
        """Mean over the jobs."""
        return fmean(self.slowdowns)

    @property
    def saving(self) -> float:
        """Share of the device-hours per step that is saved, all jobs together."""
        return fmean(self.savings)


def plan_sharing(
    jobs: Sequence[JobSpec],
    rules: ClusterRules,
    *,
    max_groups: int | None = None,
    switch_s: float = 0.0,
    recorded: Recorded | None = None,
    host_bytes: int | None = None,
) -> SharingPlan:
    """Place the jobs, which all have a trace. ``max_groups``: of each size; None: as many as are needed.
    ``host_bytes``: host memory of a node group, which holds the states of all its jobs; None: not checked.

    ``ValueError``: periods of jobs with the same number of training devices differ too much to be planned together.
    """
    groups: list[SharedGroup] = []
    without: list[JobSpec] = []
    fewest, num_orders = 0, 1
    for devices in dict.fromkeys(job.train_devices for job in jobs):
        mine = [job for job in jobs if job.train_devices == devices]
        least = fewest_groups(mine, rules)
        table, tried = best_table(mine, with_slots(mine, rules), Allowed(devices, max_groups, host_bytes), least)
        without += table.without_place
        fewest, num_orders = fewest + least, max(num_orders, tried)
        groups += [_shared(group, devices, placed, switch_s, recorded or {}) for group, placed in table.jobs.items()]
    return SharingPlan(
        policy=rules.policy,
        groups=tuple(groups),
        without_place=tuple(without),
        fewest_groups=fewest,
        num_orders=num_orders,
        switch_s=switch_s,
        host_bytes=host_bytes,
    )


def _shared(
    group: NodeGroupId, devices: int, jobs: Sequence[tuple[JobSpec, float]], switch_s: float, recorded: Recorded
) -> SharedGroup:
    traces, starts = [_trace(job) for job, _ in jobs], [shift_s for _, shift_s in jobs]
    planned = forecast(traces, starts, switch_s=switch_s)
    periods = [recorded.get(job.id, ()) for job, _ in jobs]
    plays = [planned.slowdowns]
    if any(periods):
        plays = [
            forecast(traces, starts, switch_s=switch_s, recorded=periods, seed=seed).slowdowns
            for seed in range(NUM_PLAYS)
        ]
    placed = tuple(
        PlacedJob(
            job=job,
            shift_s=shift_s,
            slowdowns=slowdowns,
            savings=tuple(_saving(job, len(jobs), slowdown) for slowdown in slowdowns),
        )
        for (job, shift_s), slowdowns in zip(jobs, zip(*plays, strict=True), strict=True)
    )
    return SharedGroup(id=group, devices=devices, jobs=placed, forecast=planned)


def _as_many(found: Iterable[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """The same number of values for each job: jobs of which every period is alike have one, which holds every time."""
    values = list(found)
    most = max(map(len, values), default=1)
    return [each * most if len(each) == 1 else each for each in values]


def _saving(job: JobSpec, num_sharing: int, slowdown: float) -> float:
    shared = job.train_devices / num_sharing + job.rollout_devices
    return 1.0 - shared * slowdown / _devices(job)


def _devices(job: JobSpec) -> int:
    return job.train_devices + job.rollout_devices


def _trace(job: JobSpec) -> DemandTrace:
    assert job.trace is not None, f"job {job.id} has no trace"
    return job.trace
