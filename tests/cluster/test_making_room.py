"""A job that is alone on its group joins others, if somebody waits for an empty group."""

from __future__ import annotations

import pytest

from cluster.small_cluster import cluster, end, group, submit, trace
from cluster.test_repacking import G0, G1, LONG, SHARING, profiled, where
from cluster.test_wait_share import ask, ended, tell
from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster.ids import JobId
from tailrace.cluster.job_spec import StateBytes
from tailrace.cluster.scheduler import Scheduler
from tailrace.cluster.settings import Policy


def one_too_many(policy: Policy, **spec: object) -> Scheduler:
    """Jobs a and b fill g0, c is alone on g1, and a job of unknown demand waits for an empty group."""
    scheduler = cluster(group("g0"), group("g1"), policy=policy, max_jobs_per_group=2, rollout_devices=10)
    scheduler.handle(ev.NodeLost(node=scheduler.rooms.groups.named(G1).facts.nodes[0]), now=0.0)
    for name in ("a", "b"):
        assert submit(scheduler, name, trace=trace(60, 12), steps=LONG, rollout_devices=2)
    scheduler.handle(ev.NodeReturned(node=scheduler.rooms.groups.named(G1).facts.nodes[0]), now=0.0)
    assert submit(scheduler, "c", trace=trace(60, 10), steps=LONG, rollout_devices=2)
    assert where(scheduler) == {"a": G0, "b": G0, "c": G1}
    assert not submit(scheduler, "head", now=1.0, **({"steps": LONG} | spec))
    return scheduler


@pytest.mark.parametrize("policy", SHARING)
def test_when_another_group_has_room_the_lone_job_moves_and_the_waiting_one_starts(policy: Policy) -> None:
    scheduler = one_too_many(policy)
    commands = tell(scheduler, ev.JobEnded(job=JobId("a")), now=100.0)
    [move, place, admit] = [command for command in commands if isinstance(command, do.Move | do.Place | do.Admit)]
    assert isinstance(move, do.Move)
    assert isinstance(place, do.Place)
    assert (move.job, move.source, move.target) == ("c", G1, G0)
    assert (place.job, place.group, place.is_dedicated) == ("head", G1, True)
    assert admit == do.Admit(job=JobId("head"))


@pytest.mark.parametrize("policy", SHARING)
def test_a_job_that_computes_moves_when_its_lease_ends(policy: Policy) -> None:
    scheduler = one_too_many(policy)
    ask(scheduler, "b", now=90.0)
    ask(scheduler, "c", now=90.0)
    assert end(scheduler, "a", now=100.0) == []
    assert where(scheduler) == {"b": G0, "c": G1}
    assert do.Admit(job=JobId("head")) in ended(scheduler, "c", now=110.0)
    assert where(scheduler) == {"b": G0, "c": G0, "head": G1}


@pytest.mark.parametrize("policy", SHARING)
def test_nobody_moves_if_nobody_waits(policy: Policy) -> None:
    scheduler = one_too_many(policy)
    end(scheduler, "head", now=99.0)
    assert tell(scheduler, ev.JobEnded(job=JobId("a")), now=100.0) == []


@pytest.mark.parametrize("policy", SHARING)
def test_nobody_moves_for_a_job_that_could_not_start_anyway(policy: Policy) -> None:
    scheduler = one_too_many(policy, rollout_devices=7)  # 4 are free, 6 when a has ended
    assert tell(scheduler, ev.JobEnded(job=JobId("a")), now=100.0) == []
    assert where(scheduler) == {"b": G0, "c": G1}


def test_the_one_that_moves_leaves_a_group_that_the_waiting_job_can_use() -> None:
    groups = (group("g0", device_bytes=100), group("g1", device_bytes=10))
    scheduler = cluster(*groups, policy=Policy.PACK, max_jobs_per_group=2)
    assert submit(scheduler, "a", trace=trace(60, 10), steps=LONG)
    assert submit(scheduler, "b", trace=trace(60, 10), steps=LONG)
    assert submit(scheduler, "c", trace=trace(60, 10), steps=LONG)
    assert where(scheduler) == {"a": G0, "b": G0, "c": G1}
    assert not submit(scheduler, "head", steps=LONG, state=StateBytes(weights=50))
    assert end(scheduler, "a", now=100.0) == ["head"], "b moves to g1"
    assert where(scheduler) == {"b": G1, "c": G1, "head": G0}


def test_one_job_moves_for_one_that_waits() -> None:
    """Three jobs are alone on their groups, because each was profiled while the others were not known."""
    scheduler = cluster(*(group(f"g{n}") for n in range(3)), policy=Policy.PACK, max_wait_share=0.1)
    for name in ("a", "b", "c"):
        assert submit(scheduler, name, steps=LONG)
    for number, name in enumerate(("a", "b", "c")):
        profiled(scheduler, name, trace(60, 10), now=100.0 + number)
        scheduler.rooms.jobs.named(JobId(name)).log.late_s = 1000.0  # nobody joins a job that has waited so much
    for record in scheduler.rooms.jobs.every():
        record.log.late_s = 0.0
    assert len(set(where(scheduler).values())) == 3
    assert submit(scheduler, "new", now=200.0, steps=LONG)
    assert len(set(where(scheduler).values())) == 3, "two of the three share a group now"
    assert len([name for name in where(scheduler) if name in "abc"]) == 3


@pytest.mark.parametrize("policy", SHARING)
def test_a_lone_job_kept_out_by_waits_moves_when_their_share_is_small_enough(policy: Policy) -> None:
    scheduler = cluster(group("g0"), group("g1"), policy=policy, max_wait_share=0.1, drift=10.0)
    node = scheduler.rooms.groups.named(G1).facts.nodes[0]
    scheduler.handle(ev.NodeLost(node=node), now=0.0)
    for name in ("a", "b"):
        assert submit(scheduler, name, trace=trace(100, 20), steps=LONG)
        ask(scheduler, name, now=0.0)
    ended(scheduler, "a", now=200.0, seconds=200.0)  # b waits for 200 s
    ended(scheduler, "b", now=220.0)
    scheduler.handle(ev.NodeReturned(node=node), now=221.0)
    assert submit(scheduler, "c", now=222.0, trace=trace(100, 20), steps=LONG)
    assert where(scheduler) == {"a": G0, "b": G0, "c": G1}
    assert not submit(scheduler, "head", now=230.0, steps=LONG)
    assert tell(scheduler, ev.TimePassed(), now=1_999.0) == [do.Wake(at=2_000.0)]
    commands = tell(scheduler, ev.TimePassed(), now=2_000.0)
    assert do.Admit(job=JobId("head")) in commands
    assert where(scheduler)["c"] == G0


def test_a_lone_job_moves_beside_one_that_has_begun_since() -> None:
    """The large job can use g0 only. There is no group with jobs to join for the one that is alone there, at first."""
    small, large = StateBytes(weights=50), StateBytes(weights=100)
    scheduler = cluster(
        group("g0", device_bytes=100), group("g1", device_bytes=50), policy=Policy.SPREAD_BACKFILL, rollout_devices=0
    )
    assert submit(scheduler, "alone", trace=trace(60, 20), steps=LONG, state=small, rollout_devices=0)
    assert where(scheduler) == {"alone": G0}
    assert not submit(scheduler, "large", now=1.0, trace=trace(60, 40), steps=LONG, state=large, rollout_devices=0)
    assert submit(scheduler, "begins", now=2.0, trace=trace(60, 20), steps=LONG, state=small, rollout_devices=0)
    assert where(scheduler) == {"alone": G1, "begins": G1, "large": G0}
