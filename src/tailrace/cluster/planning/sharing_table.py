"""Jobs on node groups of one size: placed one after the other, in the order that needs the fewest groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from tailrace.cluster.demand.trace import DemandTrace
from tailrace.cluster.ids import NodeGroupId, NodeId
from tailrace.cluster.job_spec import JobSpec
from tailrace.cluster.planning.fitting import Footprint
from tailrace.cluster.planning.in_step import place_in_step
from tailrace.cluster.planning.job_orders import orders
from tailrace.cluster.planning.ranking import best_place
from tailrace.cluster.planning.timetable import Timetable
from tailrace.cluster.settings import ClusterRules, NodeGroup, Policy

SLOTS_PER_PERIOD = 100
"""Slots of the shortest period, if that needs slots below the default."""
MAX_PERIOD_RATIO = 1000
"""Periods that differ by a larger factor are not planned together: the forecast plays every phase of the shortest one
for as long as the longest one needs."""
_ROUNDING = 1e-9


def with_slots(jobs: Sequence[JobSpec], rules: ClusterRules) -> ClusterRules:
    """The rules with slots that are short enough for the shortest period."""
    short, long = (choose(jobs, key=lambda job: _trace(job).period_s) for choose in (min, max))
    short_s, long_s = _trace(short).period_s, _trace(long).period_s
    if long_s > MAX_PERIOD_RATIO * short_s:
        raise ValueError(
            f"the period of {long.id} ({long_s:g} s) is more than {MAX_PERIOD_RATIO:,} times that of {short.id}"
            f" ({short_s:g} s), which is too much for one plan; plan them by themselves"
        )
    return replace(rules, slot_s=min(rules.slot_s, short_s / SLOTS_PER_PERIOD))


class Allowed(NamedTuple):
    """The node groups that there are."""

    devices: int
    """Devices of each group."""
    max_groups: int | None
    """None: as many as are needed."""
    host_bytes: int | None
    """Host memory of each group; None: not checked."""


def best_table(jobs: Sequence[JobSpec], rules: ClusterRules, allowed: Allowed, fewest: int) -> tuple[SharingTable, int]:
    """The plan with the fewest jobs without a place and then the fewest groups, and how many orders were tried. The
    order in which the jobs are given is kept if no other one is better."""
    best, num_orders = None, 0
    for order in orders(jobs):
        num_orders += 1
        table = SharingTable(len(jobs), rules, allowed)
        for job in order:
            table.place(job)
        best = table if best is None or table.cost < best.cost else best
        if best.cost <= (0, fewest):
            break
    assert best is not None
    return best, num_orders


class SharingTable:
    """The node groups of one size, opened one after the other."""

    def __init__(self, num_jobs: int, rules: ClusterRules, allowed: Allowed) -> None:
        self._rules, self._host_bytes = rules, allowed.host_bytes
        limit = num_jobs if allowed.max_groups is None else min(allowed.max_groups, num_jobs)
        self._unopened = [NodeGroupId(f"{allowed.devices}x-{number}") for number in range(1, limit + 1)]
        groups = [NodeGroup(id=each, nodes=(NodeId(each),), devices=allowed.devices) for each in self._unopened]
        self._timetable = Timetable(groups)
        self.jobs: dict[NodeGroupId, list[tuple[JobSpec, float]]] = {}
        """Jobs of each open group, with their shifts in seconds."""
        self.without_place: list[JobSpec] = []

    @property
    def cost(self) -> tuple[int, int]:
        return len(self.without_place), len(self.jobs)

    def place(self, job: JobSpec) -> None:
        """Place the job on a group that is open, or on the next one."""
        if self._join(job):
            return
        if self._unopened:
            # A group is there for at least one job, however much of the time that job needs.
            self._put(job, self._footprint(job), self._unopened.pop(0), shift=0)
        else:
            self.without_place.append(job)

    def _footprint(self, job: JobSpec) -> Footprint:
        return Footprint.of(_trace(job), self._rules.slot_s)

    def _join(self, job: JobSpec) -> bool:
        if self._rules.policy is Policy.ISOLATED:
            return False
        if self._rules.policy is Policy.PACK:
            return self._pack(job)
        groups = [group for group, jobs in self.jobs.items() if self._has_bytes(job, jobs)]
        found = best_place(self._timetable, self._footprint(job), groups, 0, self._rules)
        if found is None:
            found = place_in_step(self._timetable, _trace(job), groups, 0, self._rules)
        if found is None:
            return False
        self._put(job, found.placement.footprint, found.group, shift=found.shift)
        return True

    def _has_bytes(self, job: JobSpec, others: Sequence[tuple[JobSpec, float]]) -> bool:
        """Whether host memory holds the states of all these jobs. That of a lone job stays on the devices."""
        if self._host_bytes is None or not others:
            return True
        return job.state.total + sum(other.state.total for other, _ in others) <= self._host_bytes

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
            and self._has_bytes(job, jobs)
        ]
        if not having_room:
            return False
        self.jobs[max(having_room, key=lambda group: duties[group])].append((job, 0.0))
        return True


def _trace(job: JobSpec) -> DemandTrace:
    assert job.trace is not None, f"job {job.id} has no trace"
    return job.trace
