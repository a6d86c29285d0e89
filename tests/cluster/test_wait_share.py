"""A job that may not join a group because others wait too much there joins as soon as that is over."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.small_cluster import cluster, end, group, submit, trace
from cluster.test_job_record import job as record
from cluster.test_job_record import waiting
from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster.ids import JobId, NodeGroupId
from tailrace.cluster.job_spec import JobSpec
from tailrace.cluster.scheduler import Scheduler
from tailrace.cluster.settings import Policy

G0 = NodeGroupId("g0")
SHARING = [Policy.PACK, Policy.SPREAD, Policy.SPREAD_BACKFILL]


def tell(scheduler: Scheduler, event: ev.Event, *, now: float) -> list[do.Command]:
    """The commands that follow, when all transfers that they ask for are done at once."""
    found, todo = [], scheduler.handle(event, now=now)
    while todo:
        command = todo.pop(0)
        found.append(command)
        if isinstance(command, do.Load | do.Offload | do.Prefetch):
            measured = ev.TransferMeasured(
                job=command.job,
                group=command.group,
                transfer=command.transfer,
                direction=ev.Direction(type(command).__name__.lower()),
                num_bytes=0,
                seconds=0.0,
            )
            todo += scheduler.handle(measured, now=now)
    scheduler.check()
    return found


def ask(scheduler: Scheduler, name: str, *, now: float) -> list[do.Command]:
    return tell(scheduler, ev.PhaseAsked(job=JobId(name), operations_s=(20.0,)), now=now)


def ended(scheduler: Scheduler, name: str, *, now: float, seconds: float = 20.0) -> list[do.Command]:
    return tell(scheduler, ev.PhaseEnded(job=JobId(name), seconds=seconds), now=now)


def crowded(policy: Policy, **rules: object) -> Scheduler:
    """Jobs a and b share a group. At 220 s, b has waited for 200 s, because a phase of a took ten times as long."""
    scheduler = cluster(policy=policy, max_wait_share=0.1, drift=10.0, **rules)
    for name in ("a", "b"):
        assert submit(scheduler, name, trace=trace(100, 20), steps=10**5)
    ask(scheduler, "a", now=0.0)
    ask(scheduler, "b", now=0.0)
    ended(scheduler, "a", now=200.0, seconds=200.0)
    ended(scheduler, "b", now=220.0)
    return scheduler


def wakes(commands: list[do.Command]) -> list[float]:
    return [command.at for command in commands if isinstance(command, do.Wake)]


def submitted(scheduler: Scheduler, name: str, *, now: float, busy_s: float = 20.0) -> list[do.Command]:
    spec = JobSpec(id=JobId(name), train_devices=8, trace=trace(100, busy_s), steps=10)
    return tell(scheduler, ev.JobSubmitted(job=spec), now=now)


@pytest.mark.parametrize("policy", SHARING)
def test_a_job_that_was_kept_out_joins_at_the_moment_at_which_the_share_is_small_enough(policy: Policy) -> None:
    scheduler = crowded(policy)
    assert submitted(scheduler, "c", now=230.0) == [do.Wake(at=2000.0)], "200 s of 2000 s are a tenth"
    [wait] = [wait for wait in scheduler.waits(230.0) if "job c" in wait.what]
    assert wait.what.endswith("on g0, whose jobs have waited for too much of their time")
    assert (wait.since, wait.until) == (230.0, 2000.0)
    for now in range(300, 2000, 100):  # phases that do not wait: nothing new is asked for
        for name, at in (("a", now), ("b", now + 30)):
            commands = ask(scheduler, name, now=at) + ended(scheduler, name, now=at + 20)
            assert not any(isinstance(command, do.Wake | do.Admit) for command in commands)
    assert tell(scheduler, ev.TimePassed(), now=1999.0) == [do.Wake(at=2000.0)], "too early"
    assert do.Admit(job=JobId("c")) in tell(scheduler, ev.TimePassed(), now=2000.0)


def test_an_event_that_comes_later_than_the_wake_serves_as_well() -> None:
    scheduler = crowded(Policy.PACK)
    submitted(scheduler, "c", now=230.0)
    assert do.Admit(job=JobId("c")) in ask(scheduler, "a", now=2001.0)


@pytest.mark.parametrize("policy", SHARING)
def test_while_a_phase_waits_the_time_is_not_known_and_its_lease_tells_it(policy: Policy) -> None:
    scheduler = crowded(policy)
    ask(scheduler, "a", now=300.0)
    ask(scheduler, "b", now=300.0)
    assert wakes(submitted(scheduler, "c", now=310.0)) == []
    commands = ended(scheduler, "a", now=320.0)  # b has waited for 20 s more
    assert wakes(commands) == [2200.0]
    assert wakes(ended(scheduler, "b", now=340.0)) == []
    assert do.Admit(job=JobId("c")) in tell(scheduler, ev.TimePassed(), now=2200.0)


def test_a_wake_at_which_somebody_waits_again_is_followed_by_another_one() -> None:
    scheduler = crowded(Policy.PACK)
    submitted(scheduler, "c", now=230.0)
    ask(scheduler, "a", now=1900.0)
    ask(scheduler, "b", now=1900.0)
    assert tell(scheduler, ev.TimePassed(), now=2000.0) == []
    assert wakes(ended(scheduler, "a", now=2000.0, seconds=100.0)) == [3000.0], "300 s of 3000 s"
    ended(scheduler, "b", now=2020.0)
    assert do.Admit(job=JobId("c")) in tell(scheduler, ev.TimePassed(), now=3000.0)


def test_nobody_is_woken_for_a_group_that_has_no_room_anyway() -> None:
    for rules, busy_s in (({"max_jobs_per_group": 2}, 20.0), ({}, 45.0)):
        assert submitted(crowded(Policy.PACK, **rules), "c", now=230.0, busy_s=busy_s) == []


def test_nobody_is_woken_when_the_job_that_waited_has_gone() -> None:
    scheduler = crowded(Policy.PACK)
    submitted(scheduler, "c", now=230.0)
    assert end(scheduler, "c", now=240.0) == []
    assert not scheduler.rooms.groups.opens_at
    assert tell(scheduler, ev.TimePassed(), now=2000.0) == []


def test_a_job_takes_another_group_if_one_becomes_free_first() -> None:
    scheduler = cluster(group("g0"), group("g1"), policy=Policy.ISOLATED, max_wait_share=0.0)
    for name in ("a", "b"):
        assert submit(scheduler, name, trace=trace(100, 20), steps=10)
    assert submitted(scheduler, "c", now=1.0) == []
    assert end(scheduler, "b", now=2.0) == ["c"]


def test_the_share_of_a_job_is_expected_to_fall_until_its_next_phase_waits() -> None:
    assert record(late_s=30.0).wait_share_falls_at(0.3, 150.0) == 150.0, "less than a period: nothing counts yet"
    assert record(late_s=30.0).wait_share_falls_at(0.2, 200.0) == 250.0
    assert record(late_s=30.0).wait_share_falls_at(0.2, 260.0) == 260.0
    assert record(late_s=30.0).wait_share_falls_at(0.0, 200.0) == math.inf
    for phase, expected in (
        (waiting(246.0, slack_s=5.0), 250.0),
        (waiting(198.0, slack_s=51.0), math.inf),  # its slack ends before
        (waiting(190.0, slack_s=5.0), math.inf),
        (waiting(190.0, slack_s=5.0, lease=1), 250.0),
    ):
        assert record(late_s=30.0, phase=phase).wait_share_falls_at(0.2, 200.0) == expected, phase


@given(st.floats(1.0, 1e5), st.floats(0.01, 0.99), st.floats(0.0, 1e9))
def test_at_that_time_the_share_is_small_enough_and_not_before(late_s: float, most: float, seated_at: float) -> None:
    job, now = record(late_s=late_s, seated_at=seated_at), seated_at + 100.0
    at = job.wait_share_falls_at(most, now)
    assert job.wait_share(at) <= most
    if at > now:
        assert job.wait_share(max(now, at - 1e-3)) > most
