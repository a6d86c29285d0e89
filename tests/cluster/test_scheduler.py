"""Jobs that can never run, reports that cannot be true, where jobs are placed, and what jobs wait for, told by hand."""

from __future__ import annotations

import math

import pytest

from cluster.small_cluster import cluster, end, group, run_phase, submit, trace
from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster import journal
from tailrace.cluster.demand.trace import DemandSegment, DemandTrace
from tailrace.cluster.ids import JobId, NodeGroupId, NodeId
from tailrace.cluster.job_spec import JobSpec, StateBytes
from tailrace.cluster.scheduler import Scheduler
from tailrace.cluster.settings import ClusterRules, NodeGroup, Policy
from tailrace.core.errors import ReplayMismatch


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"train_devices": 9}, "it trains on 9 devices, and no node group has that many"),
        ({"rollout_devices": 101}, "it needs 101 rollout devices, the cluster has 100"),
        (
            {"state": StateBytes(weights=900, optimizer=101)},
            "its state of 1,001 bytes does not fit on the devices of any",
        ),
    ],
)
def test_a_job_that_can_never_run_is_refused_with_the_reason(spec: dict[str, object], reason: str) -> None:
    scheduler = cluster(group("g0", device_bytes=1000, host_bytes=10))
    job = JobSpec(**({"id": JobId("a"), "train_devices": 8} | spec))  # type: ignore[arg-type]
    [refused] = scheduler.handle(ev.JobSubmitted(job=job), now=0.0)
    assert isinstance(refused, do.Refuse)
    assert refused.reason.startswith(reason)
    assert scheduler.waits(0.0) == []
    assert not refused.is_name_taken
    assert scheduler.rooms.jobs.find(JobId("a")) is None


def test_what_fits_exactly_is_not_refused() -> None:
    scheduler = cluster(group("g0", device_bytes=1000, host_bytes=10))
    spec = JobSpec(id=JobId("a"), train_devices=8, rollout_devices=100, state=StateBytes(weights=1000), steps=1)
    commands = scheduler.handle(ev.JobSubmitted(job=spec), now=0.0)
    assert commands == [
        do.Place(job=JobId("a"), group=NodeGroupId("g0"), shift_s=0.0, is_dedicated=True),
        do.Admit(job=JobId("a")),
    ]


def test_reports_that_cannot_be_true_are_counted_and_change_nothing() -> None:
    scheduler = cluster(policy=Policy.PACK)
    assert submit(scheduler, "a", trace=trace(60, 10), steps=10)
    name, unknown = JobId("a"), JobId("unknown")
    elsewhere = ev.TransferMeasured(
        job=name, group=NodeGroupId("g9"), transfer=1, direction=ev.Direction.LOAD, num_bytes=0, seconds=1.0
    )
    reports: list[ev.Event] = [
        ev.JobEnded(job=unknown),
        ev.PhaseAsked(job=unknown, operations_s=(1.0,)),
        ev.PhaseAsked(job=name, operations_s=()),
        ev.PhaseAsked(job=name, operations_s=(math.nan,)),
        ev.PhaseAsked(job=name, operations_s=(-1.0,)),
        ev.PhaseAsked(job=name, operations_s=(1.0,), slack_s=math.inf),
        ev.PhaseEnded(job=unknown, seconds=1.0),
        ev.PhaseEnded(job=name, seconds=1.0),
        elsewhere,
    ]
    for number, report in enumerate(reports, 1):
        assert scheduler.handle(report, now=1.0) == []
        assert scheduler.rooms.watch.num_ignored == number, report
    scheduler.handle(ev.PhaseAsked(job=name, operations_s=(0.0,)), now=2.0)
    assert scheduler.rooms.watch.num_ignored == len(reports), "an operation may take no time"
    scheduler.handle(ev.PhaseAsked(job=name, operations_s=(1.0,)), now=2.0)
    scheduler.handle(ev.PhaseEnded(job=name, seconds=1.0), now=2.0)
    assert scheduler.rooms.watch.num_ignored == len(reports) + 2, "one phase at a time, and it has no lease yet"
    end(scheduler, "a", now=3.0)
    scheduler.handle(ev.JobEnded(job=name), now=4.0)
    scheduler.handle(ev.PhaseAsked(job=name, operations_s=(1.0,)), now=4.0)
    assert scheduler.rooms.watch.num_ignored == len(reports) + 4
    with pytest.raises(TypeError, match="unknown event"):
        scheduler.handle(ev.Event(), now=5.0)


def test_a_report_about_an_earlier_lease_is_ignored() -> None:
    scheduler = cluster(policy=Policy.PACK)
    assert submit(scheduler, "a", trace=trace(60, 10), steps=10)
    run_phase(scheduler, "a", now=0.0)
    [granted] = scheduler.handle(ev.PhaseAsked(job=JobId("a"), operations_s=(10.0,)), now=60.0)
    assert granted == do.GrantLease(job=JobId("a"), group=NodeGroupId("g0"), num_operations=1, lease=2)
    assert scheduler.handle(ev.PhaseEnded(job=JobId("a"), seconds=10.0, lease=1), now=61.0) == []
    assert scheduler.rooms.watch.num_ignored == 1
    assert scheduler.rooms.jobs.named(JobId("a")).log.num_phases == 1
    scheduler.handle(ev.PhaseEnded(job=JobId("a"), seconds=10.0, lease=2), now=70.0)
    assert scheduler.rooms.jobs.named(JobId("a")).log.num_phases == 2


def placed(scheduler: Scheduler) -> dict[str, str]:
    return {job: group.id for group in scheduler.rooms.groups.every() for job in group.jobs}


def test_pack_takes_the_fullest_group_and_an_empty_one_last() -> None:
    scheduler = cluster(group("g0"), group("g1"), group("g2"), policy=Policy.PACK, max_jobs_per_group=3)
    for name, busy in (("a", 50), ("b", 60), ("c", 10), ("d", 20), ("e", 70)):
        assert submit(scheduler, name, trace=trace(100, busy), steps=5)
    assert placed(scheduler) == {"a": "g0", "d": "g0", "b": "g1", "c": "g1", "e": "g2"}


def test_a_job_that_is_too_busy_has_a_group_to_itself() -> None:
    scheduler = cluster(group("g0"), group("g1"), policy=Policy.SPREAD)
    assert submit(scheduler, "busy", trace=trace(100, 81), steps=5)
    assert submit(scheduler, "usual", trace=trace(100, 10), steps=5)
    assert submit(scheduler, "another", trace=trace(100, 10), steps=5)
    assert placed(scheduler) == {"busy": "g0", "usual": "g1", "another": "g1"}
    assert [group.is_dedicated for group in scheduler.rooms.groups.every()] == [True, False]


def test_a_job_whose_period_is_longer_than_a_day_shares() -> None:
    scheduler = cluster(group("g0"), policy=Policy.SPREAD)
    assert submit(scheduler, "long", trace=trace(100_000, 40_000), steps=5)
    assert submit(scheduler, "other", trace=trace(200_000, 30_000), steps=5)
    assert placed(scheduler) == {"long": "g0", "other": "g0"}


def test_a_shift_counts_from_now_in_whole_slots() -> None:
    scheduler = cluster(policy=Policy.SPREAD)
    spec = JobSpec(id=JobId("a"), train_devices=8, trace=trace(100, 10), steps=5)
    [place, _] = scheduler.handle(ev.JobSubmitted(job=spec), now=0.25)
    assert place == do.Place(job=JobId("a"), group=NodeGroupId("g0"), shift_s=0.75)
    spec = JobSpec(id=JobId("b"), train_devices=8, trace=trace(100, 10), steps=5)
    [place, _] = scheduler.handle(ev.JobSubmitted(job=spec), now=1.0)
    assert place == do.Place(job=JobId("b"), group=NodeGroupId("g0"), shift_s=10.0)


def test_no_job_joins_a_group_on_which_another_waits_for_too_long() -> None:
    scheduler = cluster(group("g0"), policy=Policy.PACK, max_wait_share=0.5)
    assert submit(scheduler, "a", trace=trace(60, 10), steps=50)
    scheduler.rooms.jobs.named(JobId("a")).log.late_s = 61.0
    assert not submit(scheduler, "b", now=120.0, trace=trace(60, 10), steps=5)
    scheduler.rooms.jobs.named(JobId("a")).log.late_s = 60.0
    assert submit(scheduler, "c", now=120.0, trace=trace(60, 10), steps=5)


def test_waits_say_what_a_job_lacks_and_why() -> None:
    scheduler = cluster(group("g0"), group("large", 16), rollout_devices=6, policy=Policy.ISOLATED)
    assert submit(scheduler, "a", trace=trace(100, 20), steps=5, rollout_devices=4)
    submit(scheduler, "b", now=10.0, trace=trace(100, 20), steps=5, rollout_devices=3)
    submit(scheduler, "c", now=20.0, trace=trace(100, 20), steps=5)
    told = {wait.what: (wait.since, wait.limit_s) for wait in scheduler.waits(30.0)}
    assert told == {
        "job b: room on a node group of 8 devices, on g0, and 3 rollout devices (2 are free)": (10.0, 520.0),
        "job c: its turn behind b": (20.0, math.inf),
    }
    scheduler.handle(ev.NodeLost(node=NodeId("g0-node")), now=40.0)
    told = {wait.what: (wait.since, wait.limit_s) for wait in scheduler.waits(50.0)}
    assert told == {
        "job a: room on a node group of 8 devices, because g0 was lost": (40.0, math.inf),
        "job b: its turn behind a": (10.0, math.inf),
        "job c: its turn behind a": (20.0, math.inf),
    }


def test_names_of_groups_and_nodes_are_used_once() -> None:
    nodes = (NodeId("n"),)
    for second in (
        NodeGroup(id=NodeGroupId("g0"), nodes=(NodeId("m"),), devices=8),
        NodeGroup(id=NodeGroupId("g1"), nodes=nodes, devices=8),
    ):
        groups = (NodeGroup(id=NodeGroupId("g0"), nodes=nodes, devices=8), second)
        with pytest.raises(ValueError, match="names of their own"):
            Scheduler(ev.ClusterStarted(rules=ClusterRules(), groups=groups))


def test_a_trace_ends_within_its_period() -> None:
    with pytest.raises(ValueError, match=r"ends at 10\.1 s, after the period of 10\.0 s"):
        DemandTrace(period_s=10.0, segments=(DemandSegment(offset_s=5.1, duration_s=5.0),))
    assert DemandTrace(period_s=10.0, segments=(DemandSegment(offset_s=5.0, duration_s=5.0),)).duty == 0.5
    for period_s, steps, segments in ((0.0, 1, 1), (10.0, 0, 1), (10.0, 1, 0)):
        with pytest.raises(ValueError, match="a demand trace needs"):
            DemandTrace(
                period_s=period_s, steps=steps, segments=(DemandSegment(offset_s=0.0, duration_s=1.0),) * segments
            )
    later, earlier = DemandSegment(offset_s=5.0, duration_s=1.0), DemandSegment(offset_s=0.0, duration_s=1.0)
    with pytest.raises(ValueError, match="segments must follow each other"):
        DemandTrace(period_s=10.0, segments=(later, earlier))


def test_a_journal_that_differs_is_told_apart() -> None:
    started = ev.ClusterStarted(rules=ClusterRules(), groups=(group("g0"),))
    first = journal.Entry(now=0.0, event=started)
    asked = journal.Entry(now=1.0, event=ev.JobEnded(job=JobId("a")), commands=(do.Wake(at=1.0),))
    assert journal.decode(journal.encode(first)) == first
    assert journal.decode(journal.encode(asked)) == asked
    assert '"format":1' in journal.encode(first)
    assert "format" not in journal.encode(asked)
    with pytest.raises(ReplayMismatch, match="entry 1"):
        journal.replay([first, asked])
    with pytest.raises(ReplayMismatch, match="begins with ClusterStarted, not JobEnded"):
        journal.replay([asked])
    with pytest.raises(ReplayMismatch, match="empty"):
        journal.replay([])
