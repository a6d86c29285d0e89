"""Which jobs share which node groups, for capacity planning: all jobs are known and begin together.

Jobs are placed one after the other, as a scheduler does with jobs whose demand is known:

* ``isolated``: a group for each;
* ``pack``: the fullest group that has room for the job's duty. Phases wait for each other;
* ``spread``: a group in whose free time all phases fit, with the least shift; or in step with jobs of about the same
  period (``in_step.py``).

A new group is opened only for a job that has no place on the others. The slowdown is a forecast: see ``forecast.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tailrace.cluster.demand.trace import DemandTrace
from tailrace.cluster.ids import NodeGroupId, NodeId
from tailrace.cluster.job_spec import JobSpec
from tailrace.cluster.planning.fitting import Footprint
from tailrace.cluster.planning.in_step import place_in_step
from tailrace.cluster.planning.ranking import best_place
from tailrace.cluster.planning.sharing_forecast import SharingForecast, forecast
from tailrace.cluster.planning.timetable import Timetable
from tailrace.cluster.settings import ClusterRules, NodeGroup, Policy

SLOTS_PER_PERIOD = 100
"""Slots of the shortest period, if that needs slots below the default."""
MAX_PERIOD_RATIO = 1000
"""Periods that differ by a larger factor are not planned together: the forecast plays every phase of the shortest one
for as long as the longest one needs."""

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedJob:
    job: JobSpec
    shift_s: float
    """Seconds by which its first period begins later, so that its phases fall into the free time of the others."""
    slowdown: float
    """Forecast: time with sharing over time alone."""
    saving: float
    """Share of its device-hours per step that sharing saves. The devices of a group are divided among its jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGroup:
    id: NodeGroupId
    devices: int
    jobs: tuple[PlacedJob, ...]
    forecast: SharingForecast

    @property
    def duty(self) -> float:
        return sum(_trace(placed.job).duty for placed in self.jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingPlan:
    policy: Policy
    groups: tuple[SharedGroup, ...]
    without_place: tuple[JobSpec, ...] = ()
    """Jobs for which the allowed number of groups has no room."""

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
    def slowdown(self) -> float:
        """Mean over the jobs."""
        return sum(placed.slowdown for placed in self.jobs) / len(self.jobs) if self.jobs else 1.0

    @property
    def saving(self) -> float:
        """Share of the device-hours per step that is saved, all jobs together."""
        alone = self.devices_alone
        return sum(placed.saving * _devices(placed.job) for placed in self.jobs) / alone if alone else 0.0


def plan_sharing(
    jobs: Sequence[JobSpec], rules: ClusterRules, *, max_groups: int | None = None, switch_s: float = 0.0
) -> SharingPlan:
    """Place the jobs, which all have a trace. ``max_groups``: of each size; None: as many as are needed.

    ``ValueError``: periods of jobs with the same number of training devices differ too much to be planned together.
    """
    groups: list[SharedGroup] = []
    without: list[JobSpec] = []
    for devices in dict.fromkeys(job.train_devices for job in jobs):
        mine = [job for job in jobs if job.train_devices == devices]
        table = _Table(devices, len(mine), _with_slots(mine, rules), max_groups)
        without += [job for job in mine if not table.place(job)]
        groups += [_shared(group, devices, placed, switch_s) for group, placed in table.jobs.items()]
    return SharingPlan(policy=rules.policy, groups=tuple(groups), without_place=tuple(without))


class _Table:
    """The node groups of one size, opened one after the other."""

    def __init__(self, devices: int, num_jobs: int, rules: ClusterRules, max_groups: int | None) -> None:
        self._rules = rules
        limit = num_jobs if max_groups is None else min(max_groups, num_jobs)
        self._unopened = [NodeGroupId(f"{devices}x-{number}") for number in range(1, limit + 1)]
        groups = [NodeGroup(id=each, nodes=(NodeId(each),), devices=devices) for each in self._unopened]
        self._timetable = Timetable(groups)
        self.jobs: dict[NodeGroupId, list[tuple[JobSpec, float]]] = {}
        """Jobs of each open group, with their shifts in seconds."""

    def place(self, job: JobSpec) -> bool:
        """Whether the job has a place now: on a group that is open, or on the next one."""
        is_placed = self._join(job)
        if not is_placed and self._unopened:
            # A group is there for at least one job, however much of the time that job needs.
            self._put(job, self._footprint(job), self._unopened.pop(0), shift=0)
            is_placed = True
        return is_placed

    def _footprint(self, job: JobSpec) -> Footprint:
        return Footprint.of(_trace(job), self._rules.slot_s)

    def _join(self, job: JobSpec) -> bool:
        if self._rules.policy is Policy.ISOLATED:
            return False
        if self._rules.policy is Policy.PACK:
            return self._pack(job)
        found = best_place(self._timetable, self._footprint(job), self.jobs, 0, self._rules)
        if found is None:
            found = place_in_step(self._timetable, _trace(job), self.jobs, 0, self._rules)
        if found is None:
            return False
        self._put(job, found.placement.footprint, found.group, shift=found.shift)
        return True

    def _put(self, job: JobSpec, footprint: Footprint, group: NodeGroupId, *, shift: int) -> None:
        self._timetable.reserve(job.id, group, footprint, shift)
        self.jobs.setdefault(group, []).append((job, shift * self._rules.slot_s))

    def _pack(self, job: JobSpec) -> bool:
        duties = {group: sum(_trace(other).duty for other, _ in jobs) for group, jobs in self.jobs.items()}
        having_room = [
            group
            for group, jobs in self.jobs.items()
            if len(jobs) < self._rules.max_jobs_per_group
            and duties[group] + _trace(job).duty <= self._rules.max_duty + _ROUNDING
        ]
        if not having_room:
            return False
        self.jobs[max(having_room, key=lambda group: duties[group])].append((job, 0.0))
        return True


def _shared(group: NodeGroupId, devices: int, jobs: Sequence[tuple[JobSpec, float]], switch_s: float) -> SharedGroup:
    expected = forecast([_trace(job) for job, _ in jobs], [shift_s for _, shift_s in jobs], switch_s=switch_s)
    placed = tuple(
        PlacedJob(job=job, shift_s=shift_s, slowdown=slowdown, saving=_saving(job, len(jobs), slowdown))
        for (job, shift_s), slowdown in zip(jobs, expected.slowdowns, strict=True)
    )
    return SharedGroup(id=group, devices=devices, jobs=placed, forecast=expected)


def _saving(job: JobSpec, num_sharing: int, slowdown: float) -> float:
    shared = job.train_devices / num_sharing + job.rollout_devices
    return 1.0 - shared * slowdown / _devices(job)


def _with_slots(jobs: Sequence[JobSpec], rules: ClusterRules) -> ClusterRules:
    """The rules with slots that are short enough for the shortest period."""
    short, long = (choose(jobs, key=lambda job: _trace(job).period_s) for choose in (min, max))
    short_s, long_s = _trace(short).period_s, _trace(long).period_s
    if long_s > MAX_PERIOD_RATIO * short_s:
        raise ValueError(
            f"the period of {long.id} ({long_s:g} s) is more than {MAX_PERIOD_RATIO:,} times that of {short.id}"
            f" ({short_s:g} s), which is too much for one plan; plan them by themselves"
        )
    return replace(rules, slot_s=min(rules.slot_s, short_s / SLOTS_PER_PERIOD))


def _devices(job: JobSpec) -> int:
    return job.train_devices + job.rollout_devices


def _trace(job: JobSpec) -> DemandTrace:
    assert job.trace is not None, f"job {job.id} has no trace"
    return job.trace
