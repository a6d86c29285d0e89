"""An event with an impossible time is refused before anything changes. The name of an ended job is free again."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from cluster.small_cluster import cluster, end, run_phase, submit, trace
from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster.ids import JobId, NodeId
from tailrace.cluster.job_spec import JobSpec
from tailrace.cluster.scheduler import Scheduler
from tailrace.cluster.settings import Order, Policy

A = JobId("a")
SPEC = JobSpec(id=A, train_devices=8, trace=trace(60, 10), steps=10)
EVENTS: list[ev.Event] = [
    ev.JobSubmitted(job=JobSpec(id=JobId("b"), train_devices=8)),
    ev.JobEnded(job=A),
    ev.PhaseAsked(job=A, operations_s=(10.0,)),
    ev.NodeLost(node=NodeId("g0-node")),
    ev.TimePassed(),
]


def at_100_s(order: Order = Order.RESPONSE) -> Scheduler:
    """Job a runs, and two others wait in an order that changes later."""
    scheduler = cluster(policy=Policy.ISOLATED, order=order)
    assert submit(scheduler, "a", trace=trace(60, 10), steps=10)
    submit(scheduler, "long", trace=trace(60, 10), steps=1000)
    submit(scheduler, "short", now=100.0, trace=trace(60, 10), steps=1)
    return scheduler


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("now", [99.0, -1.0, math.nan, math.inf, -math.inf])
def test_an_event_with_an_impossible_time_changes_nothing(event: ev.Event, now: float) -> None:
    scheduler, other = at_100_s(), at_100_s()
    with pytest.raises(ValueError, match=r"now must be a number, and not before the newest event at 100\.0 s, got"):
        scheduler.handle(event, now=now)
    scheduler.check()
    assert scheduler.handle(event, now=5000.0) == other.handle(event, now=5000.0)
    assert scheduler.rooms.jobs == other.rooms.jobs
    assert scheduler.rooms.watch == other.rooms.watch


@pytest.mark.parametrize("now", [math.nan, math.inf, -math.inf])
def test_the_first_event_has_a_time_too(now: float) -> None:
    with pytest.raises(ValueError, match="now must be a number"):
        cluster().handle(ev.TimePassed(), now=now)


def test_several_events_may_have_the_same_time_and_the_first_one_any() -> None:
    scheduler = cluster()
    for now in (-5.0, -5.0, 0.0, 0.0):
        assert scheduler.handle(ev.TimePassed(), now=now) == []


def waits(scheduler: Scheduler) -> None:
    assert submit(scheduler, "first", trace=trace(60, 10), steps=10)
    assert not submit(scheduler, "a", trace=trace(60, 10), steps=10)


def runs(scheduler: Scheduler) -> None:
    assert submit(scheduler, "a", trace=trace(60, 10), steps=10)


def computes(scheduler: Scheduler) -> None:
    runs(scheduler)
    scheduler.handle(ev.PhaseAsked(job=A, operations_s=(10.0,)), now=0.0)


@pytest.mark.parametrize("begin", [waits, runs, computes])
def test_the_name_of_a_job_that_has_not_ended_is_taken_and_that_job_goes_on(
    begin: Callable[[Scheduler], None],
) -> None:
    scheduler = cluster(policy=Policy.ISOLATED)
    begin(scheduler)
    before = scheduler.rooms.jobs.named(A)
    [refused] = scheduler.handle(ev.JobSubmitted(job=JobSpec(id=A, train_devices=8, steps=99)), now=1.0)
    scheduler.check()
    assert refused == do.Refuse(job=A, reason="another job is called a, and has not ended", is_name_taken=True)
    assert scheduler.rooms.jobs.named(A) is before
    assert before.spec.steps == 10


def test_the_name_of_a_job_that_has_ended_is_free_for_a_new_one() -> None:
    scheduler = cluster(policy=Policy.ISOLATED)
    for number in range(3):
        now = 100.0 * number
        assert submit(scheduler, "a", now=now, trace=trace(60, 10), steps=10)
        run_phase(scheduler, "a", now=now + 1)
        assert scheduler.rooms.jobs.named(A).log.num_phases == 1, "nothing is left of the one before"
        end(scheduler, "a", now=now + 50)
    assert not scheduler.rooms.jobs.every()


def test_a_job_that_was_refused_may_be_submitted_again_and_is_answered_again() -> None:
    scheduler = cluster()
    for now in (0.0, 1.0):
        spec = JobSpec(id=A, train_devices=9)
        [refused] = scheduler.handle(ev.JobSubmitted(job=spec), now=now)
        assert isinstance(refused, do.Refuse)
        assert not refused.is_name_taken
    assert scheduler.handle(ev.JobSubmitted(job=SPEC), now=2.0)[-1] == do.Admit(job=A)
