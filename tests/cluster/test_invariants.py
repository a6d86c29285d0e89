"""The check between two events can fail: each test breaks one thing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from cluster.small_cluster import cluster, group, submit, trace
from tailrace.cluster import events as ev
from tailrace.cluster.ids import JobId, NodeGroupId, NodeId
from tailrace.cluster.job_spec import StateBytes
from tailrace.cluster.jobs.record import JobRecord
from tailrace.cluster.phases.log import PhaseInProgress
from tailrace.cluster.rearranging.measured import _Period
from tailrace.cluster.rooms import Rooms
from tailrace.cluster.scheduler import Scheduler
from tailrace.cluster.settings import Policy

A, B, WAITING = JobId("a"), JobId("b"), JobId("waiting")
G0 = NodeGroupId("g0")


def running() -> Scheduler:
    """Jobs a and b share g0, a computes, and a third one waits for rollout devices."""
    scheduler = cluster(group("g0", device_bytes=100, host_bytes=100), rollout_devices=4, policy=Policy.PACK)
    assert submit(scheduler, "a", trace=trace(60, 10), steps=9, rollout_devices=2, state=StateBytes(weights=50))
    assert submit(scheduler, "b", trace=trace(60, 10), steps=9, state=StateBytes(weights=50))
    assert not submit(scheduler, "waiting", trace=trace(60, 10), steps=9, rollout_devices=4)
    scheduler.handle(ev.PhaseAsked(job=A, operations_s=(10.0,)), now=1.0)
    loaded = ev.TransferMeasured(job=A, group=G0, transfer=1, direction=ev.Direction.LOAD, num_bytes=50, seconds=1.0)
    scheduler.handle(loaded, now=2.0)
    scheduler.check()
    return scheduler


def phase(lease: int | None = None) -> PhaseInProgress:
    return PhaseInProgress(asked_at=0.0, operations_s=(1.0,), slack_s=0.0, lease=lease)


def job(rooms: Rooms, name: JobId) -> JobRecord:
    return rooms.jobs.named(name)


def set_seat(rooms: Rooms, name: JobId, **changes: object) -> None:
    seat = job(rooms, name).seat
    assert seat is not None
    job(rooms, name).seat = replace(seat, **changes)  # type: ignore[arg-type]


def lose_lease(rooms: Rooms) -> None:
    job(rooms, A).log.phase = phase()


def set_devices(rooms: Rooms, *, free: int, of: int) -> None:
    rooms.admission.free_rollout_devices, rooms.admission.num_rollout_devices = free, of


def small_host(rooms: Rooms) -> None:
    group = rooms.groups.named(G0)
    group.facts = replace(group.facts, host_bytes=99)


def no_resident(rooms: Rooms) -> None:
    rooms.phases.queues[G0]._resident = None


PERIOD = _Period(begun_at=0.0, place_since=0.0, seconds=60.0)


def measure_unplanned(record: JobRecord) -> None:
    record.drift.measured.periods.append(PERIOD)
    record.trace = None


BROKEN: dict[str, Callable[[Rooms], object]] = {
    "a rollout device too many": lambda s: set_devices(s, free=3, of=4),
    "rollout devices below 0": lambda s: set_devices(s, free=-1, of=1),
    "a running job in the queue": lambda s: s.jobs.queue.update({A: job(s, A)}),
    "a queued job that is not in the queue": lambda s: s.jobs.queue.pop(WAITING),
    "a running job without a seat": lambda s: setattr(job(s, B), "seat", None),
    "a queued job with a seat": lambda s: setattr(job(s, WAITING), "seat", job(s, A).seat),
    "a seat that its group does not know": lambda s: s.groups.records[G0].jobs.pop(B),
    "a phase of a queued job": lambda s: setattr(job(s, WAITING).log, "phase", phase()),
    "a running job that is not among the running ones": lambda s: s.jobs.running.pop(B),
    "a claim of a job that has a seat": lambda s: s.admission.claims.update({A: G0}),
    "jobs on a lost group": lambda s: s.groups.records[G0].lost.add(NodeId("g0-node")),
    "two leases": lambda s: setattr(job(s, B).log, "phase", phase(lease=2)),
    "a lease that the job does not know": lose_lease,
    "a computing job that is not resident": no_resident,
    "a dedicated group of two": lambda s: set_seat(s, B, is_dedicated=True),
    "isolated jobs that share": lambda s: setattr(s, "rules", replace(s.rules, policy=Policy.ISOLATED)),
    "too many jobs": lambda s: setattr(s, "rules", replace(s.rules, max_jobs_per_group=1)),
    "too many bytes": small_host,
    "a job in the queue that is forgotten": lambda s: s.jobs.records.pop(WAITING),
    "a job to be planned again that is not there": lambda s: s.rearranging.to_refit.add(JobId("gone")),
    "a job to be planned again that could have been": lambda s: s.rearranging.to_refit.add(B),
    "too many periods": lambda s: job(s, B).drift.measured.periods.extend([PERIOD] * 7),
    "periods without a plan": lambda s: measure_unplanned(job(s, B)),
}


@pytest.mark.parametrize("what", BROKEN)
def test_the_check_finds(what: str) -> None:
    scheduler = running()
    BROKEN[what](scheduler.rooms)
    with pytest.raises(AssertionError):
        scheduler.check()
