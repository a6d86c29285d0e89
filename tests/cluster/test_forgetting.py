"""What the scheduler remembers does not grow with the number of jobs that have come and gone."""

from __future__ import annotations

import gc
import sys
from types import FunctionType, ModuleType

import pytest

from cluster.small_cluster import cluster, group, run_phase
from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster.demand.trace import DemandSegment, DemandTrace
from tailrace.cluster.ids import JobId, TenantId
from tailrace.cluster.job_spec import JobSpec, StateBytes
from tailrace.cluster.scheduler import Scheduler
from tailrace.cluster.settings import Order, Policy

GAP_S = 30.0
"""Seconds from one submission to the next."""
NUM_AT_A_TIME = 5
"""Jobs that are queued or run: the oldest of more ends."""


def remembered_bytes(scheduler: Scheduler) -> int:
    """Bytes of all objects that the scheduler can reach, without classes, functions and modules."""
    seen: dict[int, object] = {}
    todo: list[object] = [scheduler]
    while todo:
        found = todo.pop()
        if id(found) not in seen and not isinstance(found, type | FunctionType | ModuleType):
            seen[id(found)] = found
            todo += gc.get_referents(found)
    return sum(map(sys.getsizeof, seen.values()))


def spec(number: int) -> JobSpec:
    """Every job has a name and a demand of its own, every seventh a demand that nobody knows."""
    segment = DemandSegment(offset_s=0.0, duration_s=2.0 + number / 1e6)
    trace = None if number % 7 == 0 else DemandTrace(period_s=20.0 + number / 1e5, segments=(segment,))
    tenant = TenantId("ab"[number % 2])
    state = StateBytes(weights=number % 3)
    return JobSpec(id=JobId(f"job-{number}"), train_devices=8, steps=100, trace=trace, state=state, tenant=tenant)


class Stream:
    """Jobs come, run two phases if they can, and go."""

    def __init__(self, **rules: object) -> None:
        self.scheduler = cluster(*(group(f"g{number}") for number in range(3)), max_jobs_per_group=2, **rules)
        self.present: list[JobId] = []
        self.num_come = 0

    def let_come(self, count: int) -> None:
        for number in range(self.num_come, self.num_come + count):
            self._come(spec(number), GAP_S * number)
        self.num_come += count

    def _come(self, job: JobSpec, now: float) -> None:
        commands = self.scheduler.handle(ev.JobSubmitted(job=job), now=now)
        self.present.append(job.id)
        if do.Admit(job=job.id) in commands:
            for phase in range(2):
                run_phase(self.scheduler, job.id, now=now + 5 * phase, seconds=4.0)
        if len(self.present) > NUM_AT_A_TIME:
            self.scheduler.handle(ev.JobEnded(job=self.present.pop(0)), now=now + 20)


def largest_bytes(stream: Stream) -> int:
    """The most that is remembered while twenty more jobs come: the state goes up and down a little."""
    sizes = []
    for _ in range(20):
        stream.let_come(1)
        sizes.append(remembered_bytes(stream.scheduler))
    return max(sizes)


CASES = [(policy, order) for policy in Policy for order in Order]


@pytest.mark.parametrize(("policy", "order"), CASES)
def test_the_memory_of_a_scheduler_stays_the_same_while_jobs_come_and_go(policy: Policy, order: Order) -> None:
    stream = Stream(policy=policy, order=order)
    stream.let_come(30)
    before = largest_bytes(stream)
    stream.let_come(300)
    assert largest_bytes(stream) < 1.05 * before


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_memory_of_a_scheduler_stays_the_same_over_100_000_jobs() -> None:
    """``benchmarks/cluster_memory.py`` shows the figures."""
    stream = Stream(policy=Policy.SPREAD_BACKFILL, order=Order.RESPONSE)
    stream.let_come(30)
    before = largest_bytes(stream)
    stream.let_come(100_000)
    assert largest_bytes(stream) < 1.05 * before
