"""Transfers have numbers: a report about one that was given up does not end a later one."""

from __future__ import annotations

from cluster.arbitration.group_histories import LOAD, PREFETCH, SETUP, A, B, C, computing
from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster.ids import JobId, NodeGroupId, NodeId
from tailrace.cluster.job_spec import JobSpec, StateBytes
from tailrace.cluster.scheduler import Scheduler
from tailrace.cluster.settings import ClusterRules, NodeGroup

G0, N0 = NodeGroupId("g0"), NodeId("n0")


def loaded(transfer: int) -> ev.TransferMeasured:
    return ev.TransferMeasured(
        job=A, group=G0, transfer=transfer, direction=ev.Direction.LOAD, num_bytes=0, seconds=10.0
    )


def test_a_late_report_of_a_load_that_was_lost_with_its_node_does_not_end_the_load_after_it() -> None:
    facts = NodeGroup(id=G0, nodes=(N0,), devices=8)
    scheduler = Scheduler(ev.ClusterStarted(rules=ClusterRules(), groups=(facts,)))
    scheduler.handle(ev.JobSubmitted(job=JobSpec(id=JobId("a"), train_devices=8)), now=0.0)
    asked = scheduler.handle(ev.PhaseAsked(job=A, operations_s=(10.0,)), now=1.0)
    assert do.Load(job=A, group=G0, transfer=1) in asked
    scheduler.handle(ev.NodeLost(node=N0), now=2.0)
    again = scheduler.handle(ev.NodeReturned(node=N0), now=3.0)
    assert do.Load(job=A, group=G0, transfer=2) in again
    assert scheduler.handle(loaded(1), now=11.0) == [], "its state went with the node"
    scheduler.check()
    [granted] = scheduler.handle(loaded(2), now=13.0)
    assert isinstance(granted, do.GrantLease)


def test_a_late_report_of_a_load_does_not_end_a_later_load_of_a_job_that_left_and_came_back() -> None:
    history = computing(ClusterRules(transfers=SETUP, prefetch=False))
    history.ask(B, 1.0)
    history.leave(A, 2.0)
    first = history.transfers[B, LOAD]
    history.leave(B, 3.0)
    assert history.ask(B, 4.0) == ["load b"]
    assert history.moved(B, LOAD, 5.0, transfer=first) == []
    assert history.queue.num_ignored == 1
    assert history.moved(B, LOAD, 9.0) == ["grant b 1"]


def test_a_late_report_of_a_prefetch_says_nothing_about_the_prefetch_after_it() -> None:
    history = computing(ClusterRules(transfers=SETUP))
    assert history.ask(B, 1.0) == ["prefetch b"]
    first = history.transfers[B, PREFETCH]
    history.ask(C, 2.0, (1.0,))
    history.ended(A, 10.0)
    history.moved(A, ev.Direction.OFFLOAD, 11.0)
    assert history.moved(C, LOAD, 16.0) == ["grant c 1", "prefetch b"]
    assert history.moved(B, PREFETCH, 17.0, seconds=0.0, transfer=first) == []
    assert history.queue.num_ignored == 1
    history.moved(B, PREFETCH, 20.0, seconds=4.0)
    assert history.queue.num_ignored == 1
    history.ended(C, 21.0)
    history.moved(C, ev.Direction.OFFLOAD, 22.0)
    history.moved(B, LOAD, 23.0, seconds=1.0)
    assert history.queue.costs.load_s(B, StateBytes()) == 5.0, "4 s of the second prefetch and 1 s of the load"
