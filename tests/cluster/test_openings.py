"""A job that found no place is tried again on groups where something has changed, and on no others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest

from cluster.small_cluster import cluster, end, group, submit, trace
from cluster.test_wait_share import ask, tell
from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster.admission import rules as admission
from tailrace.cluster.admission.order import changes_at, in_order
from tailrace.cluster.groups import placement
from tailrace.cluster.groups.openings import NEVER, Openings
from tailrace.cluster.groups.record import GroupRecord, fits
from tailrace.cluster.ids import JobId, NodeGroupId, NodeId
from tailrace.cluster.job_spec import JobSpec, StateBytes, StatePart
from tailrace.cluster.jobs.record import JobRecord
from tailrace.cluster.scheduler import Scheduler
from tailrace.cluster.settings import NodeGroup, Order, Policy

G0, G1, G2 = (NodeGroupId(f"g{number}") for number in range(3))
LONG = 10**6
ALL = list(Policy)
SHARING = [Policy.PACK, Policy.SPREAD, Policy.SPREAD_BACKFILL]


def test_groups_come_in_the_order_of_the_cluster_whenever_they_opened() -> None:
    openings = Openings([G0, G1, G2])
    assert openings.since(NEVER) == [G0, G1, G2]
    assert openings.since(openings.newest) == []
    before = openings.newest
    openings.note(G2)
    between = openings.newest
    openings.note(G0)
    assert openings.since(before) == [G0, G2]
    assert openings.since(between) == [G0]
    openings.note(G0)
    assert openings.since(between) == [G0]
    assert openings.since(NEVER) == [G0, G1, G2]


def full(policy: Policy, **rules: object) -> Scheduler:
    """Three groups with one job each, and one job that waits."""
    scheduler = cluster(*(group(f"g{n}") for n in range(3)), policy=policy, **({"max_jobs_per_group": 1} | rules))
    for name in ("a", "b", "c"):
        assert submit(scheduler, name, trace=trace(60, 30), steps=LONG)
    assert not submit(scheduler, "waits", trace=trace(60, 30), steps=LONG)
    return scheduler


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[NodeGroupId]]]:
    """Which job was tried on which groups."""
    found: list[tuple[str, list[NodeGroupId]]] = []
    real = admission._choose_among

    def choose_among(rooms: object, job: JobRecord, groups: Sequence[GroupRecord], now: float) -> object:
        if groups:
            found.append((job.id, [group.id for group in groups]))
        return real(rooms, job, groups, now)  # type: ignore[arg-type]

    monkeypatch.setattr(admission, "_choose_among", choose_among)
    return found


def test_a_new_job_is_tried_everywhere_and_those_that_wait_are_tried_nowhere(
    tried: list[tuple[str, list[NodeGroupId]]],
) -> None:
    scheduler = full(Policy.SPREAD_BACKFILL)
    tried.clear()
    [claimed] = scheduler.rooms.admission.claims.values()
    assert not submit(scheduler, "other", now=1.0, trace=trace(70, 30), steps=LONG)
    assert tried == [("waits", [claimed]), ("other", [name for name in (G0, G1, G2) if name != claimed])]


def test_where_a_job_has_left_the_first_that_waits_starts_and_the_others_are_tried_there_only(
    tried: list[tuple[str, list[NodeGroupId]]],
) -> None:
    scheduler = full(Policy.SPREAD_BACKFILL)
    assert not submit(scheduler, "other", now=1.0, trace=trace(70, 30), steps=LONG)
    [claimed] = scheduler.rooms.admission.claims.values()
    [name] = [
        name for name in "abc" if (seat := scheduler.rooms.jobs.named(JobId(name)).seat) and seat.group == claimed
    ]
    tried.clear()
    assert end(scheduler, name, now=2.0) == ["waits"]
    assert tried[-1] == ("other", [claimed])


@pytest.mark.parametrize("policy", ALL)
def test_a_job_gets_its_place_when_another_one_ends(policy: Policy) -> None:
    for name in ("a", "b", "c"):
        assert end(full(policy), name, now=5.0) == ["waits"]


@pytest.mark.parametrize("policy", ALL)
def test_a_job_gets_its_place_when_a_node_comes_back(policy: Policy) -> None:
    scheduler = cluster(group("g0"), group("g1"), policy=policy, max_jobs_per_group=1)
    scheduler.handle(ev.NodeLost(node=NodeId("g1-node")), now=0.0)
    assert submit(scheduler, "a", trace=trace(60, 30), steps=LONG)
    assert not submit(scheduler, "waits", trace=trace(60, 30), steps=LONG)
    commands = scheduler.handle(ev.NodeReturned(node=NodeId("g1-node")), now=9.0)
    assert do.Admit(job=JobId("waits")) in commands


@pytest.mark.parametrize("policy", SHARING)
def test_a_job_gets_its_place_when_another_one_needs_less_than_was_believed(policy: Policy) -> None:
    scheduler = cluster(policy=policy)
    assert submit(scheduler, "a", trace=trace(60, 45), steps=LONG)
    assert not submit(scheduler, "waits", trace=trace(60, 10), steps=LONG)
    commands = scheduler.handle(ev.JobProfiled(job=JobId("a"), trace=trace(60, 10)), now=9.0)
    assert do.Admit(job=JobId("waits")) in commands
    scheduler.check()


@pytest.mark.parametrize("policy", ALL)
def test_a_group_that_was_claimed_is_there_for_others_when_the_claim_ends(policy: Policy) -> None:
    """The first job in the queue keeps the free group for itself, because it waits for rollout devices only."""
    scheduler = cluster(group("g0"), policy=policy, max_jobs_per_group=1, rollout_devices=8)
    assert submit(scheduler, "a", trace=trace(60, 30), steps=LONG, rollout_devices=4)
    assert not submit(scheduler, "head", trace=trace(60, 30), steps=LONG, rollout_devices=8)
    assert not submit(scheduler, "waits", trace=trace(60, 30), steps=LONG, rollout_devices=2)
    assert end(scheduler, "a", now=5.0) == ["head"]
    assert end(scheduler, "head", now=6.0) == ["waits"]


def test_a_claim_that_another_job_takes_over_leaves_nothing_behind() -> None:
    """With the response ratio as the order, a short job may become the head after a long one had the claim."""
    scheduler = cluster(group("g0"), group("g1"), policy=Policy.ISOLATED, order=Order.RESPONSE)
    for name in ("a", "b"):
        assert submit(scheduler, name, trace=trace(60, 30), steps=LONG)
    assert not submit(scheduler, "long", now=1.0, trace=trace(60, 30), steps=10**5)
    assert list(scheduler.rooms.admission.claims) == ["long"]
    assert not submit(scheduler, "short", now=2.0, trace=trace(60, 30), steps=1)
    scheduler.handle(ev.JobSubmitted(job=scheduler.rooms.jobs.named(JobId("a")).spec), now=5000.0)  # ignored
    assert end(scheduler, "a", now=5001.0) == ["short"]
    assert list(scheduler.rooms.admission.claims) == ["long"]
    assert end(scheduler, "short", now=5002.0) == ["long"]


@pytest.mark.parametrize("policy", SHARING)
def test_a_group_whose_jobs_wait_less_is_there_for_later_jobs_with_the_same_needs(policy: Policy) -> None:
    """Job x waits, because jobs of g0 and g1 have waited for too much of their time, and then takes g2. Nobody waits
    any more, so nobody is woken when they wait less. A later job finds them."""
    scheduler = cluster(*(group(f"g{n}") for n in range(3)), policy=policy, max_jobs_per_group=2, max_wait_share=0.1)
    usual, large = trace(60, 20), trace(60, 47)
    for name in ("a", "b", "c"):
        assert submit(scheduler, name, trace=large, steps=LONG)
    for name in ("a", "b"):
        scheduler.handle(ev.JobProfiled(job=JobId(name), trace=usual), now=1.0)
    seats = {job.seat.group for job in scheduler.rooms.jobs.live() if job.seat is not None}
    if len(seats) < 3:  # one of them has joined the other
        assert submit(scheduler, "d", now=1.0, trace=large, steps=LONG)
    for job in scheduler.rooms.jobs.live():
        job.log.late_s = 30.0 if job.trace == usual else 0.0
    assert not submit(scheduler, "x", now=100.0, trace=usual, steps=LONG)
    assert end(scheduler, "c", now=110.0) == ["x"]
    for number in range(2):
        assert submit(scheduler, f"y{number}", now=401.0 + number, trace=usual, steps=LONG)


@pytest.mark.parametrize("policy", SHARING)
def test_a_lone_job_makes_room_when_rollout_devices_have_come_back(policy: Policy) -> None:
    """Jobs a and b are alone on their groups and fit together. One of unknown demand waits for an empty group, and for
    rollout devices of a job that has lost its node and is then cancelled."""
    groups = (group("g0"), group("g1"), group("h0", 16))
    scheduler = cluster(*groups, policy=policy, max_jobs_per_group=2, rollout_devices=8)
    assert submit(scheduler, "d", train_devices=16, trace=trace(60, 20), steps=LONG, rollout_devices=6)
    scheduler.handle(ev.NodeLost(node=NodeId("g1-node")), now=0.0)
    assert submit(scheduler, "a", trace=trace(60, 40), steps=LONG)
    scheduler.handle(ev.NodeReturned(node=NodeId("g1-node")), now=0.0)
    assert submit(scheduler, "b", trace=trace(60, 40), steps=LONG)
    assert not submit(scheduler, "unknown", now=2.0, steps=LONG, rollout_devices=4)
    for name in ("a", "b"):
        scheduler.rooms.rearranging.to_refit.clear()
        scheduler.handle(ev.JobProfiled(job=JobId(name), trace=trace(60, 20)), now=2.5)
    scheduler.handle(ev.NodeLost(node=NodeId("h0-node")), now=3.0)
    assert end(scheduler, "d", now=4.0) == ["unknown"]


def test_the_order_of_admission_changes_with_time_and_the_scheduler_is_woken_for_it() -> None:
    """A large job comes first and does not fit beside a. A small one fits, and comes first when its ratio is higher."""
    scheduler = cluster(policy=Policy.PACK, order=Order.RESPONSE)
    assert submit(scheduler, "a", trace=trace(60, 25), steps=LONG)
    assert not submit(scheduler, "large", now=1.0, trace=trace(60, 35), steps=1000)
    spec = JobSpec(id=JobId("small"), train_devices=8, trace=trace(60, 6), steps=2)
    [wake] = scheduler.handle(ev.JobSubmitted(job=spec), now=10.0)
    assert isinstance(wake, do.Wake)
    assert 10.0 < wake.at < 15.0
    assert do.Admit(job=JobId("small")) in scheduler.handle(ev.TimePassed(), now=wake.at)


def test_a_job_that_becomes_overdue_passes_the_others_of_its_tenant_at_that_time() -> None:
    scheduler = cluster(policy=Policy.PACK, order=Order.RESPONSE, max_queue_s=500.0)
    for name, busy_s in (("a", 25), ("b", 20)):
        assert submit(scheduler, name, trace=trace(60, busy_s), steps=LONG)
    assert not submit(scheduler, "long", now=1.0, trace=trace(60, 6), steps=10**5)
    assert not submit(scheduler, "short", now=2.0, trace=trace(60, 35), steps=1)
    assert end(scheduler, "b", now=100.0) == [], "there is room for the long one, but the short one comes first"
    assert changes_at(scheduler.rooms, 100.0) == 502.0, "a second after the long one becomes overdue"
    assert do.Admit(job=JobId("long")) in scheduler.handle(ev.TimePassed(), now=502.0)


def test_the_scheduler_is_woken_only_when_another_job_comes_first() -> None:
    """300 jobs wait, each shorter than the one before, and nothing is free."""
    scheduler = cluster(policy=Policy.SPREAD_BACKFILL, order=Order.RESPONSE, max_jobs_per_group=1)
    assert submit(scheduler, "a", trace=trace(60, 30), steps=10**6)
    for number in range(300):
        assert not submit(scheduler, f"job-{number}", now=float(number), trace=trace(60, 30), steps=1 + 300 - number)
    now, firsts = 300.0, [in_order(scheduler.rooms, 300.0)[0].id]
    while (at := changes_at(scheduler.rooms, now)) < 40_000:
        before, now = now, at
        assert in_order(scheduler.rooms, at - 1.5)[0].id == firsts[-1] or at - before <= 2, "not woken late"
        scheduler.handle(ev.TimePassed(), now=now)
        firsts.append(in_order(scheduler.rooms, now)[0].id)
    assert 2 <= len(firsts) <= 300
    assert all(one != other for one, other in pairwise(firsts))


@pytest.mark.parametrize(("host_bytes", "is_held"), [(499, False), (500, True)])
def test_what_stays_on_the_host_needs_room_there_also_if_its_job_is_alone(host_bytes: int, is_held: bool) -> None:
    facts = NodeGroup(id=NodeGroupId("g"), nodes=(NodeId("n"),), devices=8, host_bytes=host_bytes)
    spec = JobSpec(
        id=JobId("a"), train_devices=8, state=StateBytes(weights=1000, optimizer=500), host_parts=(StatePart.OPTIMIZER,)
    )
    assert fits(facts, spec.state, parts=spec.device_parts) is is_held
    assert fits(facts, spec.state), "if everything comes to the devices, the host holds nothing"


def test_with_first_come_first_served_time_changes_nothing() -> None:
    scheduler = full(Policy.PACK, order=Order.FIRST_COME)
    assert not submit(scheduler, "other", now=1.0, trace=trace(70, 30), steps=1)
    assert changes_at(scheduler.rooms, 1.0) == math.inf


def test_searches_of_jobs_that_do_not_wait_any_more_are_forgotten() -> None:
    scheduler = full(Policy.SPREAD_BACKFILL)
    for number in range(9):
        assert not submit(scheduler, f"w{number}", now=1.0, trace=trace(70 + number, 30), steps=LONG)
    assert len(scheduler.rooms.admission.searched) == 10
    for number in range(9):
        end(scheduler, f"w{number}", now=2.0)
    assert len(scheduler.rooms.admission.searched) <= 2
    end(scheduler, "waits", now=3.0)
    assert not scheduler.rooms.admission.searched


def test_a_job_that_computes_and_needs_less_than_was_believed_lets_another_one_in_at_once() -> None:
    """It is planned again only after its phase. But phases are not planned with this policy."""
    scheduler = cluster(group("g0"), group("g1"), policy=Policy.PACK)
    for name in ("a", "b"):
        assert submit(scheduler, name, trace=trace(60, 45), steps=LONG)
    assert not submit(scheduler, "waits", trace=trace(60, 10), steps=LONG)
    [claimed] = scheduler.rooms.admission.claims.values()
    [other] = [job.id for job in scheduler.rooms.jobs.live() if job.seat is not None and job.seat.group != claimed]
    ask(scheduler, other, now=5.0)
    commands = tell(scheduler, ev.JobProfiled(job=other, trace=trace(60, 10)), now=9.0)
    assert do.Admit(job=JobId("waits")) in commands


@pytest.mark.parametrize("policy", ALL)
def test_a_job_whose_empty_group_is_lost_claims_another_one_at_once(policy: Policy) -> None:
    scheduler = cluster(group("g0"), group("g1"), policy=policy, max_jobs_per_group=1, rollout_devices=8)
    scheduler.handle(ev.NodeLost(node=NodeId("g0-node")), now=0.0)
    assert submit(scheduler, "a", trace=trace(60, 30), steps=LONG, rollout_devices=4)
    scheduler.handle(ev.NodeReturned(node=NodeId("g0-node")), now=0.0)
    assert not submit(scheduler, "head", trace=trace(60, 30), steps=LONG, rollout_devices=8)
    assert scheduler.rooms.admission.claims == {"head": G0}
    scheduler.handle(ev.NodeLost(node=NodeId("g0-node")), now=1.0)
    assert scheduler.rooms.admission.claims == {"head": G1}


def test_for_a_job_that_is_tried_nowhere_nothing_is_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = full(Policy.SPREAD_BACKFILL)
    worked_out = []
    monkeypatch.setattr(placement.Footprint, "of", lambda *given: worked_out.append(given))
    assert not submit(scheduler, "waits too", now=1.0, trace=trace(60, 30), steps=LONG)
    assert not worked_out
