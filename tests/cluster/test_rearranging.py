"""Jobs that are planned again: after their first clean period, when they drift, and when nodes are lost."""

from __future__ import annotations

import pytest

from cluster.small_cluster import cluster, end, group, run_phase, submit, trace
from cluster.test_wait_share import tell
from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster.demand.trace import DemandSegment, DemandTrace
from tailrace.cluster.ids import JobId, NodeGroupId, NodeId
from tailrace.cluster.jobs.record import JobRecord, Stage
from tailrace.cluster.planning.timetable import Reservation
from tailrace.cluster.scheduler import Scheduler
from tailrace.cluster.settings import Grain, NodeGroup, Policy

G0, G1 = NodeGroupId("g0"), NodeGroupId("g1")


def record(scheduler: Scheduler, name: str) -> JobRecord:
    return scheduler.rooms.jobs.named(JobId(name))


def reservation(scheduler: Scheduler, name: str) -> Reservation | None:
    seat = record(scheduler, name).seat
    assert seat is not None
    return seat.reservation


def profiled(scheduler: Scheduler, name: str, demand: DemandTrace, *, now: float) -> list[do.Command]:
    commands = scheduler.handle(ev.JobProfiled(job=JobId(name), trace=demand), now=now)
    scheduler.check()
    return commands


def test_after_its_first_clean_period_a_job_joins_another_and_its_group_is_free() -> None:
    scheduler = cluster(group("g0"), group("g1"), policy=Policy.PACK)
    assert submit(scheduler, "new", steps=10)
    assert submit(scheduler, "known", trace=trace(60, 10), steps=10)
    assert (record(scheduler, "new").stage, record(scheduler, "known").stage) == (Stage.PROFILING, Stage.RUNNING)
    [move] = profiled(scheduler, "new", trace(60, 10), now=20.0)
    assert move == do.Move(job=JobId("new"), source=G0, target=G1, shift_s=0.0)
    assert record(scheduler, "new").stage is Stage.RUNNING
    assert scheduler.rooms.groups.named(G0).jobs == {}


def test_a_profiled_job_stays_if_all_other_groups_are_empty_and_then_others_may_join() -> None:
    scheduler = cluster(group("g0"), group("g1"), policy=Policy.SPREAD)
    assert submit(scheduler, "new", steps=10)
    assert profiled(scheduler, "new", trace(60, 10), now=20.0) == []
    seat = record(scheduler, "new").seat
    assert seat is not None
    assert (seat.group, seat.is_dedicated) == (G0, False)
    assert seat.reservation is not None
    assert seat.reservation.placement.start == 20
    assert submit(scheduler, "other", now=21.0, trace=trace(60, 10), steps=10)
    assert len(scheduler.rooms.groups.named(G0).jobs) + len(scheduler.rooms.groups.named(G1).jobs) == 2


def test_with_isolated_jobs_a_profile_moves_nobody() -> None:
    scheduler = cluster(group("g0"), group("g1"), policy=Policy.ISOLATED)
    assert submit(scheduler, "new", steps=10)
    assert profiled(scheduler, "new", trace(60, 10), now=20.0) == []
    seat = record(scheduler, "new").seat
    assert seat is not None
    assert seat.is_dedicated


def test_a_profile_that_says_nothing_new_is_ignored() -> None:
    scheduler = cluster(policy=Policy.SPREAD)
    assert submit(scheduler, "a", trace=trace(60, 10), steps=10)
    for name, demand in (("unknown", trace(60, 10)), ("a", trace(60, 10))):
        profiled(scheduler, name, demand, now=1.0)
    assert scheduler.rooms.watch.num_ignored == 2
    end(scheduler, "a", now=2.0)
    profiled(scheduler, "a", trace(60, 30), now=3.0)
    assert scheduler.rooms.watch.num_ignored == 3, "it has ended"


def test_a_job_is_planned_again_only_between_two_phases() -> None:
    scheduler = cluster(group("g0"), group("g1"), policy=Policy.PACK)
    assert submit(scheduler, "new", steps=10)
    assert submit(scheduler, "known", trace=trace(60, 10), steps=10)
    [load, *_] = scheduler.handle(ev.PhaseAsked(job=JobId("new"), operations_s=(10.0,)), now=0.0)
    assert isinstance(load, do.Load)
    report = ev.TransferMeasured(
        job=load.job, group=G0, transfer=load.transfer, direction=ev.Direction.LOAD, num_bytes=0, seconds=1.0
    )
    scheduler.handle(report, now=1.0)
    assert profiled(scheduler, "new", trace(60, 10), now=5.0) == [], "it computes"
    commands = scheduler.handle(ev.PhaseEnded(job=JobId("new"), seconds=10.0), now=11.0)
    assert [(type(command), command.target) for command in commands if isinstance(command, do.Move)] == [(do.Move, G1)]


@pytest.mark.parametrize("policy", [Policy.PACK, Policy.ISOLATED])
def test_a_job_that_drifts_has_no_slots_if_phases_are_not_planned(policy: Policy) -> None:
    scheduler = cluster(policy=policy, drift=0.1, drift_cycles=1)
    assert submit(scheduler, "a", trace=trace(60, 10), steps=100)
    before = record(scheduler, "a").seat
    run_phase(scheduler, "a", now=25.0, seconds=30.0)
    after = record(scheduler, "a").seat
    assert before is not None
    assert after is not None
    assert after.reservation is None
    assert after.is_dedicated == before.is_dedicated


def test_a_job_whose_phases_have_become_longer_is_planned_with_the_longer_ones() -> None:
    scheduler = cluster(policy=Policy.SPREAD, drift=0.1, drift_cycles=2)
    segments = (
        DemandSegment(offset_s=5.0, duration_s=10.0),
        DemandSegment(offset_s=25.0, duration_s=10.0, slack_s=3.0),
    )
    demand = DemandTrace(period_s=60.0, segments=segments, steps=2)
    assert submit(scheduler, "a", trace=demand, steps=100)
    for now in (5.0, 35.0, 85.0):
        assert record(scheduler, "a").trace == demand, "phases of one period may be an accident"
        run_phase(scheduler, "a", now=now, seconds=20.0)
    longer = (DemandSegment(offset_s=5.0, duration_s=20.0), DemandSegment(offset_s=35.0, duration_s=20.0, slack_s=3.0))
    assert record(scheduler, "a").trace == DemandTrace(period_s=80.0, segments=longer, steps=2)
    found = reservation(scheduler, "a")
    assert found is not None
    assert (found.placement.footprint.period, found.placement.start) == (80, 80)


def beside_another(policy: Policy) -> Scheduler:
    """Jobs a and x share g0, and g1 has come back since: a has more room there."""
    scheduler = cluster(group("g0"), group("g1"), policy=policy, guard_s=0.0, min_gain=0.1)
    scheduler.handle(ev.NodeLost(node=NodeId("g1-node")), now=0.0)
    assert submit(scheduler, "x", trace=trace(60, 15), steps=1000)
    assert submit(scheduler, "a", trace=trace(60, 10), steps=1000)
    scheduler.handle(ev.NodeReturned(node=NodeId("g1-node")), now=0.0)
    if policy is Policy.PACK:  # which prefers the fuller group
        assert submit(scheduler, "y", trace=trace(60, 31), steps=1000)
    return scheduler


@pytest.mark.parametrize("policy", [Policy.PACK, Policy.SPREAD, Policy.SPREAD_BACKFILL])
@pytest.mark.parametrize(("late_s", "moves"), [(0.0, False), (59.0, False), (60.0, True), (300.0, True)])
def test_a_job_moves_only_if_it_will_be_disturbed_less_by_a_margin(policy: Policy, late_s: float, moves: bool) -> None:
    """The margin is a tenth of its time: 60 s of 600 s."""
    scheduler = beside_another(policy)
    record(scheduler, "a").log.late_s = late_s
    commands = profiled(scheduler, "a", trace(60, 11), now=600.0)
    found = [command for command in commands if isinstance(command, do.Move)]
    assert [(move.job, move.source, move.target) for move in found] == ([("a", G0, G1)] if moves else [])
    assert (JobId("a") in scheduler.rooms.groups.named(G1).jobs) == moves


def test_a_job_that_drifts_with_phases_that_took_no_time_keeps_its_trace() -> None:
    scheduler = cluster(policy=Policy.SPREAD, drift=0.1, drift_cycles=1)
    assert submit(scheduler, "a", trace=trace(60, 10), steps=100)
    run_phase(scheduler, "a", now=25.0, seconds=0.0)
    assert record(scheduler, "a").drift.pause == 1, "it was planned again"
    assert record(scheduler, "a").trace == trace(60, 10)


def test_one_very_long_phase_of_eight_does_not_count() -> None:
    scheduler = cluster(policy=Policy.SPREAD, drift=0.1, drift_cycles=8)
    assert submit(scheduler, "a", trace=trace(60, 10), steps=100)
    for number in range(8):
        run_phase(scheduler, "a", now=100.0 * number, seconds=90.0 if number == 4 else 20.0)
    found = record(scheduler, "a").trace
    assert found is not None
    assert (found.segments[0].duration_s, found.period_s) == (20.0, 100.0)


def test_drift_pauses_longer_each_time() -> None:
    """The job waits for 30 s of each 90 s. Its own period is 60 s, as planned, so there is nothing to learn."""
    scheduler = cluster(policy=Policy.PACK, drift=0.1, drift_cycles=1)
    assert submit(scheduler, "a", trace=trace(60, 10), steps=1000)
    job, pauses = record(scheduler, "a"), []
    for number in range(8):
        tell(scheduler, ev.PhaseAsked(job=job.id, operations_s=(10.0,)), now=90.0 * number)
        job.log.late_in_phase_s = 30.0
        tell(scheduler, ev.PhaseEnded(job=job.id, seconds=10.0), now=90.0 * number + 40.0)
        pauses.append((job.drift.pause, job.drift.last_pause))
    assert pauses == [(1, 1), (0, 1), (2, 2), (1, 2), (0, 2), (4, 4), (3, 4), (2, 4)]
    assert job.trace == trace(60, 10)


def two_nodes(name: str) -> NodeGroup:
    nodes = (NodeId(f"{name}-0"), NodeId(f"{name}-1"))
    return NodeGroup(id=NodeGroupId(name), nodes=nodes, devices=8)


def test_a_group_is_usable_when_all_its_nodes_are_back() -> None:
    scheduler = cluster(two_nodes("g0"), policy=Policy.SPREAD)
    assert submit(scheduler, "a", trace=trace(60, 10), steps=10)
    first, second = NodeId("g0-0"), NodeId("g0-1")
    for node in (first, second, first):
        assert scheduler.handle(ev.NodeLost(node=node), now=1.0) == []
        scheduler.check()
    assert scheduler.rooms.watch.num_ignored == 1
    displaced = record(scheduler, "a").displaced
    assert displaced is not None
    assert (displaced.group, displaced.at) == (G0, 1.0)
    assert scheduler.handle(ev.NodeReturned(node=first), now=2.0) == []
    assert scheduler.handle(ev.NodeReturned(node=first), now=2.0) == []
    assert scheduler.handle(ev.NodeReturned(node=NodeId("elsewhere")), now=2.0) == []
    assert scheduler.handle(ev.NodeLost(node=NodeId("elsewhere")), now=2.0) == []
    assert scheduler.rooms.watch.num_ignored == 4
    [move] = scheduler.handle(ev.NodeReturned(node=second), now=3.5)
    assert move == do.Move(job=JobId("a"), source=G0, target=G0, shift_s=0.5)
    scheduler.check()


def test_a_claim_on_a_lost_group_ends() -> None:
    scheduler = cluster(group("g0"), group("g1"), policy=Policy.ISOLATED)
    assert submit(scheduler, "a", trace=trace(60, 10), steps=10)
    assert submit(scheduler, "b", trace=trace(60, 10), steps=20)
    assert not submit(scheduler, "head", trace=trace(60, 10), steps=10)
    assert scheduler.rooms.admission.claims == {"head": G0}
    scheduler.handle(ev.NodeLost(node=NodeId("g0-node")), now=1.0)
    scheduler.check()
    assert G0 not in scheduler.rooms.admission.claims.values()
    assert set(scheduler.rooms.admission.claims) == {"a"}, "the job that lost its group is first now"


@pytest.mark.parametrize(("asked_at", "has_drifted"), [(50.0, False), (30.0, True)])
def test_a_phase_counts_as_drifted_if_it_is_far_from_where_it_is_planned(asked_at: float, has_drifted: bool) -> None:
    """The job is planned at 0 s, 60 s and so on, in slots of 2 s. A fifth of its period is allowed: 12 s."""
    scheduler = cluster(policy=Policy.SPREAD, slot_s=2.0, drift=0.2, drift_cycles=9)
    assert submit(scheduler, "a", trace=trace(60, 10), steps=100)
    run_phase(scheduler, "a", now=asked_at)
    assert scheduler.rooms.jobs.named(JobId("a")).drift.num_drifted == int(has_drifted)


def test_a_phase_of_two_operations_is_complete_when_both_are_done() -> None:
    scheduler = cluster(policy=Policy.PACK, grain=Grain.OPERATION)
    assert submit(scheduler, "a", trace=trace(60, 20), steps=100)
    job = scheduler.rooms.jobs.named(JobId("a"))
    for asked_at, operations_s in ((5.0, (12.0, 8.0)), (17.5, (8.0,))):
        tell(scheduler, ev.PhaseAsked(job=job.id, operations_s=operations_s), now=asked_at)
        assert (job.log.num_phases, job.log.asked_at) == (0, 5.0)
        tell(scheduler, ev.PhaseEnded(job=job.id, seconds=operations_s[0]), now=asked_at + operations_s[0])
    assert (job.log.num_phases, job.drift.measured.durations_s) == (1, {0: [20.0]})
