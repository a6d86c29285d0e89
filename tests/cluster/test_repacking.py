"""A job whose demand was not known has a group to itself; after its first clean period it shares one with others."""

from __future__ import annotations

import pytest

from cluster.small_cluster import cluster, end, group, submit, trace
from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster.demand.trace import DemandSegment, DemandTrace
from tailrace.cluster.ids import JobId, NodeGroupId
from tailrace.cluster.job_spec import StateBytes
from tailrace.cluster.scheduler import Scheduler
from tailrace.cluster.settings import NodeGroup, Policy

G0, G1 = NodeGroupId("g0"), NodeGroupId("g1")
SHARING = [Policy.PACK, Policy.SPREAD, Policy.SPREAD_BACKFILL]
LONG = 1000


def cold_cluster(policy: Policy, *names: str, groups: tuple[NodeGroup, ...] = (), **rules: object) -> Scheduler:
    """Jobs of unknown demand on two groups, in this order."""
    scheduler = cluster(*(groups or (group("g0"), group("g1"))), policy=policy, **rules)
    for name in names:
        submit(scheduler, name, steps=LONG)
    return scheduler


def profiled(scheduler: Scheduler, name: str, demand: DemandTrace, *, now: float) -> list[do.Command]:
    commands = scheduler.handle(ev.JobProfiled(job=JobId(name), trace=demand), now=now)
    scheduler.check()
    return commands


def where(scheduler: Scheduler) -> dict[str, str]:
    return {job: group.id for group in scheduler.rooms.groups.every() for job in group.jobs}


@pytest.mark.parametrize("policy", SHARING)
def test_the_second_job_that_is_profiled_joins_the_first_and_leaves_its_group_empty(policy: Policy) -> None:
    scheduler = cold_cluster(policy, "a", "b")
    assert profiled(scheduler, "a", trace(60, 10), now=100.0) == [], "the other group is dedicated"
    [move] = profiled(scheduler, "b", trace(60, 10), now=102.0)
    shift_s = 0.0 if policy is Policy.PACK else 8.0
    assert move == do.Move(job=JobId("b"), source=G1, target=G0, shift_s=shift_s)
    assert where(scheduler) == {"a": G0, "b": G0}


@pytest.mark.parametrize("policy", SHARING)
def test_a_known_job_joins_one_that_stays_after_its_first_clean_period(policy: Policy) -> None:
    scheduler = cluster(policy=policy)
    assert submit(scheduler, "new", steps=LONG)
    assert not submit(scheduler, "known", now=1.0, trace=trace(60, 10), steps=LONG)
    commands = profiled(scheduler, "new", trace(60, 10), now=60.0)
    assert do.Admit(job=JobId("known")) in commands
    assert where(scheduler) == {"new": G0, "known": G0}


@pytest.mark.parametrize("policy", Policy)
def test_a_job_that_needs_its_group_nearly_all_the_time_keeps_it_to_itself(policy: Policy) -> None:
    scheduler = cold_cluster(policy, "a", "busy")
    profiled(scheduler, "a", trace(60, 10), now=100.0)
    assert profiled(scheduler, "busy", trace(60, 50), now=101.0) == []
    assert scheduler.rooms.groups.named(G1).is_dedicated
    assert scheduler.rooms.groups.named(G0).is_dedicated == (policy is Policy.ISOLATED)


@pytest.mark.parametrize("policy", SHARING)
def test_the_group_that_becomes_empty_goes_to_the_job_that_waits_for_an_empty_one(policy: Policy) -> None:
    """The head claims g0. Who joins g0 and leaves g1 empty does not delay it: it can have g1 at once."""
    scheduler = cold_cluster(policy, "a", "b", "head")
    profiled(scheduler, "a", trace(60, 10), now=100.0)
    assert scheduler.rooms.admission.claims == {"head": G0}
    commands = profiled(scheduler, "b", trace(60, 10), now=120.0)
    assert [type(command) for command in commands] == [do.Move, do.Place, do.Admit]
    assert where(scheduler) == {"a": G0, "b": G0, "head": G1}
    assert scheduler.rooms.admission.claims == {}


@pytest.mark.parametrize("policy", SHARING)
def test_a_head_that_still_lacks_rollout_devices_claims_the_empty_group_instead(policy: Policy) -> None:
    scheduler = cluster(group("g0"), group("g1"), policy=policy, rollout_devices=10)
    for name in ("a", "b"):
        assert submit(scheduler, name, steps=LONG, rollout_devices=5)
    assert not submit(scheduler, "head", steps=LONG, rollout_devices=5)
    profiled(scheduler, "a", trace(60, 10), now=100.0)
    assert scheduler.rooms.admission.claims == {"head": G0}
    [move] = profiled(scheduler, "b", trace(60, 10), now=120.0)
    assert isinstance(move, do.Move)
    assert scheduler.rooms.admission.claims == {"head": G1}
    assert end(scheduler, "a", now=130.0) == ["head"]
    assert where(scheduler) == {"b": G0, "head": G1}


@pytest.mark.parametrize("policy", SHARING)
def test_the_job_whose_group_the_head_can_use_is_the_one_that_moves(policy: Policy) -> None:
    """Only g0 has room for the state of the head, so b must not join a there and leave g1 empty."""
    scheduler = cluster(group("g0", device_bytes=100), group("g1", device_bytes=10), policy=policy)
    for name in ("a", "b"):
        assert submit(scheduler, name, steps=LONG, state=StateBytes(weights=10))
    assert not submit(scheduler, "head", steps=LONG, state=StateBytes(weights=50))
    profiled(scheduler, "a", trace(60, 10), now=100.0)
    assert scheduler.rooms.admission.claims == {"head": G0}
    commands = profiled(scheduler, "b", trace(60, 10), now=120.0)
    assert [type(command) for command in commands] == [do.Move, do.Place, do.Admit]
    assert where(scheduler) == {"a": G1, "b": G1, "head": G0}


@pytest.mark.parametrize("policy", SHARING)
@pytest.mark.parametrize("limit", [{"max_jobs_per_group": 1}, {"max_duty": 0.3}, {"max_wait_share": 0.1}])
def test_the_limits_of_a_group_hold_for_a_job_that_would_leave_its_own(policy: Policy, limit: dict[str, float]) -> None:
    scheduler = cold_cluster(policy, "a", "b", **limit)
    profiled(scheduler, "a", trace(60, 10), now=100.0)
    scheduler.rooms.jobs.named(JobId("a")).log.late_s = 40.0
    assert profiled(scheduler, "b", trace(60, 10), now=120.0) == []
    assert where(scheduler) == {"a": G0, "b": G1}


@pytest.mark.parametrize("policy", [Policy.SPREAD, Policy.SPREAD_BACKFILL])
@pytest.mark.parametrize(
    ("period_s", "planned_s"), [(60, 60), (70, 60), (52, 60), (77, None), (145, 120), (32, 30), (45, None)]
)
def test_jobs_whose_periods_differ_by_less_than_drift_are_planned_in_step(
    policy: Policy, period_s: float, planned_s: int | None
) -> None:
    """A period of 70 s that is seen once may be one of 60 s. Planned as it was seen, it would meet the other within
    the horizon of 600 s, whatever its shift."""
    scheduler = cold_cluster(policy, "a", "b", drift=0.2)
    profiled(scheduler, "a", trace(60, 20 if period_s > 50 else 10), now=100.0)
    profiled(scheduler, "b", trace(period_s, 20 if period_s > 50 else 10), now=120.0)
    assert where(scheduler)["b"] == (G1 if planned_s is None else G0)
    if planned_s is not None:
        seat = scheduler.rooms.jobs.named(JobId("b")).seat
        assert seat is not None
        assert seat.reservation is not None
        footprint = seat.reservation.placement.footprint
        assert footprint.period / footprint.repeats == planned_s


def test_another_period_makes_the_pauses_longer_or_shorter() -> None:
    segments = (
        DemandSegment(offset_s=10.0, duration_s=5.0, slack_s=3.0),
        DemandSegment(offset_s=35.0, duration_s=15.0),
    )
    demand = DemandTrace(period_s=60.0, segments=segments, steps=2)  # pauses of 10, 20 and 10 s
    longer = (DemandSegment(offset_s=20.0, duration_s=5.0, slack_s=3.0), DemandSegment(offset_s=65.0, duration_s=15.0))
    assert demand.with_period(100.0) == DemandTrace(period_s=100.0, segments=longer, steps=2)
    without = (DemandSegment(offset_s=0.0, duration_s=5.0, slack_s=3.0), DemandSegment(offset_s=5.0, duration_s=15.0))
    assert demand.with_period(20.0) == DemandTrace(period_s=20.0, segments=without, steps=2)
    assert demand.with_period(19.0) is None
    always = trace(10.0, 10.0)
    assert always.with_period(20.0) == trace(20.0, 10.0)
    assert always.with_period(9.0) is None
