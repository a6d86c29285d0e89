"""When jobs are expected to ask for their next phase: from what they said, or else from their traces."""

from __future__ import annotations

import math

import pytest

from cluster.small_cluster import cluster, run_phase, submit, trace
from sim.cluster.clusters import small
from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster.demand.trace import DemandSegment, DemandTrace
from tailrace.cluster.ids import JobId, NodeGroupId
from tailrace.cluster.phases.expected import expected_phases
from tailrace.cluster.scheduler import Scheduler
from tailrace.cluster.settings import Grain, Policy
from tailrace.sim.cluster.result import simulate_cluster

TWICE = DemandTrace(
    period_s=100.0,
    segments=(DemandSegment(offset_s=5.0, duration_s=10.0), DemandSegment(offset_s=65.0, duration_s=10.0)),
)


def asks_at(scheduler: Scheduler) -> dict[str, tuple[float, float]]:
    """When each job is expected to ask, and from when on it is not expected any more."""
    rooms = scheduler.rooms
    phases = expected_phases(rooms.groups.named(NodeGroupId("g0")), rooms.rules)
    return {phase.owner.job: (phase.asks_at, phase.given_up_at) for phase in phases}


def end_phase(scheduler: Scheduler, name: str, *, now: float, **said: object) -> list[do.Command]:
    """A phase of 10 s, asked for 10 s ago, ends."""
    run_phase(scheduler, name, now=now - 20)
    scheduler.handle(ev.PhaseAsked(job=JobId(name), operations_s=(10.0,)), now=now - 10)
    return scheduler.handle(ev.PhaseEnded(job=JobId(name), seconds=10.0, **said), now=now)  # type: ignore[arg-type]


def test_the_next_phase_comes_as_long_after_the_one_before_as_in_the_trace() -> None:
    scheduler = cluster(policy=Policy.PACK)
    submit(scheduler, "a", trace=TWICE)
    assert asks_at(scheduler) == {}, "nothing is known before its first phase"
    run_phase(scheduler, "a", now=5.0)
    assert asks_at(scheduler) == {"a": (65.0, 85.0)}
    scheduler.handle(ev.PhaseAsked(job=JobId("a"), operations_s=(10.0,)), now=65.0)
    assert asks_at(scheduler) == {}, "it computes"
    scheduler.handle(ev.PhaseEnded(job=JobId("a"), seconds=10.0), now=75.0)
    assert asks_at(scheduler) == {"a": (105.0, 125.0)}


def test_what_a_job_says_counts_more_than_its_trace() -> None:
    scheduler = cluster(policy=Policy.PACK)
    submit(scheduler, "a", trace=trace(100.0, 10.0))
    end_phase(scheduler, "a", now=40.0, next_in_s=33.0)
    assert asks_at(scheduler) == {"a": (73.0, 93.0)}


@pytest.mark.parametrize("next_in_s", [-1.0, math.nan, math.inf])
def test_what_cannot_be_true_is_not_believed(next_in_s: float) -> None:
    scheduler = cluster(policy=Policy.PACK)
    submit(scheduler, "a", trace=trace(100.0, 10.0))
    end_phase(scheduler, "a", now=40.0, next_in_s=next_in_s)
    assert asks_at(scheduler) == {"a": (130.0, 150.0)}


def test_after_a_failure_and_between_two_operations_a_job_asks_again_at_once() -> None:
    scheduler = cluster(policy=Policy.PACK)
    submit(scheduler, "a", trace=trace(100.0, 10.0))
    end_phase(scheduler, "a", now=40.0, failed=True)
    assert asks_at(scheduler) == {"a": (40.0, 60.0)}
    scheduler = cluster(policy=Policy.PACK, grain=Grain.OPERATION)
    submit(scheduler, "a", trace=trace(100.0, 10.0))
    run_phase(scheduler, "a", now=5.0)
    scheduler.handle(ev.PhaseAsked(job=JobId("a"), operations_s=(4.0, 6.0)), now=105.0)
    scheduler.handle(ev.PhaseEnded(job=JobId("a"), seconds=4.0), now=109.0)
    assert asks_at(scheduler) == {"a": (109.0, 129.0)}


@pytest.mark.parametrize("predict_switches", [True, False])
def test_the_state_of_the_next_job_moves_when_the_group_becomes_idle(predict_switches: bool) -> None:
    scheduler = cluster(policy=Policy.PACK, predict_switches=predict_switches)
    for name in ("a", "b"):
        submit(scheduler, name, trace=trace(100.0, 10.0))
    run_phase(scheduler, "b", now=5.0)
    moved = [type(command) for command in run_phase(scheduler, "a", now=20.0)]
    assert moved == ([do.Offload] if predict_switches else [])


@pytest.mark.parametrize("overlap", ["serial", "one-step"])
def test_jobs_that_share_a_group_wait_less_if_switches_are_predicted(overlap: str) -> None:
    jobs = {"count": 2, "min_steps": 20, "max_steps": 20, "overlap": overlap, "jitter": 0.05}
    models = {"logprob_s": 5.0, "update_s": 10.0, "sync_s": 5.0}
    waited = {}
    for predict in (False, True):
        result = simulate_cluster(
            small(jobs=jobs, models=models, rules={"predict_switches": predict}), "spread", Scheduler
        )
        waited[predict] = sum(job.lease_wait_s for job in result.jobs)
    assert waited[True] < 0.7 * waited[False]
