"""A job that waits for a place gets it: later jobs do not delay it, whatever they are."""

from __future__ import annotations

import math

import pytest

from cluster.small_cluster import cluster, end, group, run_phase, submit, trace
from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster.admission.heads import head_of
from tailrace.cluster.demand.trace import DemandSegment, DemandTrace
from tailrace.cluster.ids import JobId, NodeId
from tailrace.cluster.job_spec import StateBytes
from tailrace.cluster.settings import Policy
from tailrace.cluster.watch import waits

LONG = 10**6


def test_a_stream_of_later_jobs_does_not_take_the_groups_that_the_head_waits_for() -> None:
    scheduler = cluster(group("g0"), group("g1"), policy=Policy.SPREAD_BACKFILL, max_jobs_per_group=2)
    for number in range(4):
        assert submit(scheduler, f"a{number}", trace=trace(100, 20), steps=LONG)
    assert not submit(scheduler, "head", trace=trace(73, 30), steps=10)
    live = [f"a{number}" for number in range(4)]
    for number in range(20):
        name = f"b{number}"
        if submit(scheduler, name, now=10.0 + number, trace=trace(100, 20), steps=LONG):
            live.append(name)
        admitted = end(scheduler, live.pop(0), now=10.5 + number)
        live += [job for job in admitted if job != "head"]
        if "head" in admitted:
            return
    pytest.fail("the head waits for ever")


def test_rollout_devices_that_the_head_will_need_are_not_given_away_twice() -> None:
    scheduler = cluster(*(group(f"g{n}") for n in range(5)), rollout_devices=10, policy=Policy.SPREAD_BACKFILL)
    assert submit(scheduler, "a", trace=trace(100, 20), steps=10, rollout_devices=5)
    assert not submit(scheduler, "head", trace=trace(100, 20), steps=10, rollout_devices=8)
    assert submit(scheduler, "b", trace=trace(100, 20), steps=LONG, rollout_devices=2)
    assert not submit(scheduler, "c", trace=trace(100, 20), steps=LONG, rollout_devices=2)
    assert "head" in end(scheduler, "a", now=1000.0)


def test_what_ends_at_an_unknown_time_is_not_taken_for_never() -> None:
    scheduler = cluster(*(group(f"g{n}") for n in range(5)), rollout_devices=8, policy=Policy.SPREAD_BACKFILL)
    assert submit(scheduler, "unknown", steps=5, rollout_devices=4)
    assert not submit(scheduler, "head", trace=trace(100, 20), steps=10, rollout_devices=8)
    assert not submit(scheduler, "later", trace=trace(100, 20), steps=LONG, rollout_devices=4)
    assert end(scheduler, "unknown", now=50.0) == ["head"]


@pytest.mark.parametrize("policy", Policy)
def test_jobs_of_another_size_leave_the_head_its_rollout_devices(policy: Policy) -> None:
    scheduler = cluster(group("large", 16), group("small"), rollout_devices=8, policy=policy, max_jobs_per_group=1)
    assert submit(scheduler, "a", train_devices=16, trace=trace(100, 20), steps=1)
    assert not submit(scheduler, "head", train_devices=16, trace=trace(100, 20), steps=1, rollout_devices=8)
    assert not submit(scheduler, "later", trace=trace(100, 20), steps=LONG, rollout_devices=8)
    assert end(scheduler, "a", now=100.0) == ["head"]


def test_a_job_that_lost_its_group_comes_before_newcomers() -> None:
    scheduler = cluster(group("g0"), group("g1"), policy=Policy.SPREAD)
    assert submit(scheduler, "unknown", steps=5)
    assert submit(scheduler, "other", trace=trace(100, 20), steps=LONG)
    scheduler.handle(ev.NodeLost(node=NodeId("g0-node")), now=5.0)
    for number in range(5):
        assert not submit(scheduler, f"new{number}", now=6.0 + number, trace=trace(100, 20), steps=LONG)
    commands = scheduler.handle(ev.JobEnded(job=JobId("other")), now=20.0)
    moves = [(command.job, command.target) for command in commands if isinstance(command, do.Move)]
    assert moves == [("unknown", "g1")]
    assert "new0" in " ".join(wait.what for wait in scheduler.waits(21.0))


def test_a_short_job_is_backfilled_into_the_group_that_the_head_waits_for() -> None:
    scheduler = cluster(group("g0"), policy=Policy.SPREAD_BACKFILL, max_jobs_per_group=2)
    assert submit(scheduler, "a", trace=trace(100, 40), steps=10)
    assert not submit(scheduler, "head", trace=trace(100, 70), steps=10)
    assert not submit(scheduler, "long", trace=trace(100, 20), steps=20)
    assert submit(scheduler, "short", trace=trace(100, 20), steps=5)


def test_the_state_of_all_jobs_counts_whoever_came_first() -> None:
    scheduler = cluster(group("g0", device_bytes=100, host_bytes=50, disk_bytes=0), policy=Policy.SPREAD)
    assert submit(scheduler, "empty", trace=trace(100, 20), steps=10)
    assert not submit(scheduler, "large", trace=trace(100, 20), steps=10, state=StateBytes(weights=90))


def test_a_hold_that_ends_at_once_is_woken() -> None:
    scheduler = cluster(policy=Policy.PACK)
    assert scheduler.handle(ev.TimePassed(), now=1.0) == []
    scheduler.rooms.watch.wake_at = 1.0
    assert scheduler.handle(ev.TimePassed(), now=1.0) == []
    assert scheduler.rooms.watch.wake_at is None


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_phases_of_impossible_length_change_nothing_and_end_the_lease(seconds: float) -> None:
    scheduler = cluster(policy=Policy.SPREAD, drift_cycles=1, drift=0.01)
    assert submit(scheduler, "a", trace=trace(100, 20), steps=10)
    for number in range(4):
        now = 100.0 * number
        commands = scheduler.handle(ev.PhaseAsked(job=JobId("a"), operations_s=(20.0,)), now=now)
        while not any(isinstance(command, do.GrantLease) for command in commands):
            load = next(command for command in commands if isinstance(command, do.Load))
            measured = ev.TransferMeasured(
                job=load.job,
                group=load.group,
                transfer=load.transfer,
                direction=ev.Direction.LOAD,
                num_bytes=0,
                seconds=0.0,
            )
            commands = scheduler.handle(measured, now=now)
        scheduler.handle(ev.PhaseEnded(job=JobId("a"), seconds=seconds), now=now + 20)
        scheduler.check()
    job = scheduler.rooms.jobs.named(JobId("a"))
    assert (job.log.num_phases, job.log.phase) == (4, None)
    assert job.trace == trace(100, 20)


def test_a_trace_with_a_number_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="a demand trace needs a period above 0"):
        trace(math.nan, 1.0)
    with pytest.raises(ValueError, match="duration_s must be above 0 and finite, got nan"):
        trace(10.0, math.nan)


def test_a_job_that_drifted_and_stays_is_planned_where_its_phases_are() -> None:
    scheduler = cluster(policy=Policy.SPREAD, drift=0.1, drift_cycles=1)
    assert submit(scheduler, "a", trace=trace(60, 10), steps=100)
    before = scheduler.rooms.jobs.named(JobId("a")).seat
    assert before is not None
    assert before.reservation is not None
    run_phase(scheduler, "a", now=25.0)
    after = scheduler.rooms.jobs.named(JobId("a")).seat
    assert after is not None
    assert after.reservation is not None
    assert before.reservation.placement.start == 0
    assert after.reservation.placement.start % 60 == 25


def test_the_head_waits_for_room_not_for_an_empty_group() -> None:
    scheduler = cluster(group("g0"), group("g1"), policy=Policy.PACK)
    assert submit(scheduler, "c", trace=trace(100, 50), steps=5)
    assert submit(scheduler, "b", trace=trace(100, 30), steps=2)  # beside c, on the fullest group
    assert submit(scheduler, "a", trace=trace(100, 60), steps=10)
    assert not submit(scheduler, "head", trace=trace(100, 30), steps=10)
    assert scheduler.rooms.admission.claims == {"head": "g0"}
    assert [wait.limit_s for wait in scheduler.waits(0.0)] == [200.0]  # when b has ended; c ends at 500


def test_the_next_phase_is_expected_after_the_gap_between_its_segments() -> None:
    scheduler = cluster(policy=Policy.SPREAD)
    segments = (
        DemandSegment(offset_s=0.0, duration_s=10.0, slack_s=1.0),
        DemandSegment(offset_s=30.0, duration_s=10.0, slack_s=2.0),
    )
    assert submit(scheduler, "a", trace=DemandTrace(period_s=100.0, segments=segments), steps=10)
    job = scheduler.rooms.jobs.named(JobId("a"))
    assert job.latest_start(0.0) is None
    run_phase(scheduler, "a", now=0.0)
    assert job.latest_start(10.0) == 32.0
    run_phase(scheduler, "a", now=31.0)
    assert job.latest_start(41.0) == 31.0 + 70.0 + 1.0
    assert job.latest_start(200.0) == 201.0


@pytest.mark.parametrize(("host_bytes", "expected_s"), [(None, 200.0), (100, 200.0), (99, 500.0)])
def test_the_head_waits_until_there_is_room_for_its_state_too(host_bytes: int | None, expected_s: float) -> None:
    memory = {} if host_bytes is None else {"host_bytes": host_bytes}
    scheduler = cluster(group("g0", **memory), group("g1", **memory), policy=Policy.PACK)
    assert submit(scheduler, "c", trace=trace(100, 50), steps=5, state=StateBytes(weights=60))
    assert submit(scheduler, "b", trace=trace(100, 30), steps=2)
    assert submit(scheduler, "a", trace=trace(100, 60), steps=10)
    assert not submit(scheduler, "head", trace=trace(100, 30), steps=10, state=StateBytes(weights=40))
    assert [wait.limit_s for wait in scheduler.waits(0.0)] == [expected_s]


@pytest.mark.parametrize(("busy_s", "expected_s"), [(50, 400.0), (75, 600.0), (90, 600.0)])
def test_the_head_waits_until_as_many_jobs_have_ended_as_are_in_its_way(busy_s: float, expected_s: float) -> None:
    """Of three jobs with duties 0.3, 0.2 and 0.2; a duty of 0.9 needs a group of its own."""
    scheduler = cluster(policy=Policy.PACK)
    for name, busy, steps in (("a", 30, 2), ("b", 20, 4), ("c", 20, 6)):
        assert submit(scheduler, name, trace=trace(100, busy), steps=steps)
    assert not submit(scheduler, "head", trace=trace(100, busy_s), steps=10)
    assert [wait.limit_s for wait in scheduler.waits(0.0)] == [expected_s]


def test_a_job_that_lost_its_group_takes_over_the_claim_of_the_head_before_it() -> None:
    scheduler = cluster(group("g0"), group("g1"), policy=Policy.SPREAD_BACKFILL)
    assert submit(scheduler, "unknown", steps=5)
    assert submit(scheduler, "other", trace=trace(100, 20), steps=LONG)
    assert not submit(scheduler, "head", steps=5)
    assert scheduler.rooms.admission.claims == {"head": "g1"}
    assert not submit(scheduler, "later", trace=trace(100, 20), steps=2 * LONG)
    commands = scheduler.handle(ev.NodeLost(node=NodeId("g0-node")), now=5.0)
    scheduler.check()
    assert commands == [], "nobody else joins the only group that is left"
    assert scheduler.rooms.admission.claims == {"unknown": "g1"}


def test_a_head_claims_only_a_group_that_can_hold_its_state() -> None:
    scheduler = cluster(
        group("small", device_bytes=10),
        group("large", device_bytes=100),
        policy=Policy.SPREAD_BACKFILL,
        max_jobs_per_group=1,
    )
    state = StateBytes(weights=50)
    assert submit(scheduler, "a", trace=trace(100, 20), steps=10, state=state)
    assert not submit(scheduler, "head", trace=trace(100, 20), steps=10, state=state)
    assert scheduler.rooms.admission.claims == {"head": "large"}
    assert submit(scheduler, "later", trace=trace(100, 20), steps=LONG, state=StateBytes(weights=5))
    assert end(scheduler, "a", now=1000.0) == ["head"]


def test_the_waits_of_many_jobs_look_for_one_head_of_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = cluster(group("g0"), policy=Policy.PACK, max_jobs_per_group=1)
    for number in range(20):
        submit(scheduler, f"job{number}", trace=trace(100, 20), steps=10)
    asked: list[object] = []
    monkeypatch.setattr(waits, "head_of", lambda rooms, job, now: asked.append(job) or head_of(rooms, job, now))
    assert len(scheduler.waits(1.0)) >= 19
    assert len(asked) == 1


def test_a_head_for_which_no_group_is_left_holds_nothing_back() -> None:
    scheduler = cluster(group("large", 16), group("small"), rollout_devices=10, policy=Policy.SPREAD_BACKFILL)
    scheduler.handle(ev.NodeLost(node=NodeId("large-node")), now=0.0)
    assert not submit(scheduler, "head", train_devices=16, trace=trace(100, 20), steps=10, rollout_devices=10)
    assert submit(scheduler, "other", trace=trace(100, 20), steps=10, rollout_devices=1)
