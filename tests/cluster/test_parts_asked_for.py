"""What jobs say about the parts of their state, and what the scheduler remembers of it."""

from __future__ import annotations

import pytest

from cluster.small_cluster import cluster, group, run_phase, submit, trace
from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster.demand.trace import DemandSegment, DemandTrace
from tailrace.cluster.ids import JobId, NodeGroupId
from tailrace.cluster.job_spec import ALL_PARTS, JobSpec, Parts, StateBytes, StatePart
from tailrace.cluster.phases.expected import expected_phases
from tailrace.cluster.scheduler import Scheduler
from tailrace.cluster.settings import Policy

WEIGHTS, GRADIENTS, OPTIMIZER = StatePart
STATE = StateBytes(weights=100, gradients=100, optimizer=600)
TWICE = DemandTrace(
    period_s=100.0,
    segments=(DemandSegment(offset_s=5.0, duration_s=10.0), DemandSegment(offset_s=65.0, duration_s=10.0)),
)


def asked(scheduler: Scheduler, now: float, parts: Parts | None) -> list[do.Command]:
    return scheduler.handle(ev.PhaseAsked(job=JobId("a"), operations_s=(10.0,), parts=parts), now=now)


def loaded(scheduler: Scheduler, commands: list[do.Command], now: float) -> None:
    """All loads take no time."""
    for load in commands:
        if isinstance(load, do.Load):
            report = ev.TransferMeasured(
                job=load.job,
                group=load.group,
                transfer=load.transfer,
                direction=ev.Direction.LOAD,
                num_bytes=0,
                seconds=0.0,
            )
            loaded(scheduler, scheduler.handle(report, now=now), now)
    scheduler.check()


def lone(**spec: object) -> Scheduler:
    scheduler = cluster(policy=Policy.PACK)
    submit(scheduler, "a", state=STATE, **spec)
    return scheduler


@pytest.mark.parametrize(
    ("host_parts", "asks_for", "loads"),
    [
        ((), None, ALL_PARTS),
        ((), (OPTIMIZER, WEIGHTS, WEIGHTS), (WEIGHTS, OPTIMIZER)),
        ((OPTIMIZER,), None, (WEIGHTS, GRADIENTS)),
        ((OPTIMIZER,), (WEIGHTS,), (WEIGHTS,)),
    ],
)
def test_a_load_names_the_parts_that_the_phase_needs(host_parts: Parts, asks_for: Parts | None, loads: Parts) -> None:
    [load] = asked(lone(host_parts=host_parts), 1.0, asks_for)
    assert isinstance(load, do.Load)
    assert load.parts == loads


@pytest.mark.parametrize("parts", [(), (OPTIMIZER,), (WEIGHTS, OPTIMIZER)])
def test_a_phase_that_asks_for_a_part_of_the_host_or_for_none_is_ignored(parts: Parts) -> None:
    scheduler = lone(host_parts=(OPTIMIZER,))
    assert asked(scheduler, 1.0, parts) == []
    assert scheduler.rooms.watch.num_ignored == 1


def test_an_optimizer_on_the_host_needs_no_room_on_the_devices_but_in_host_memory() -> None:
    for host_bytes, fits in ((1600, True), (1599, False)):
        scheduler = cluster(group("g0", device_bytes=200, host_bytes=host_bytes), policy=Policy.PACK)
        short = trace(100.0, 10.0)
        assert submit(scheduler, "a", state=STATE, host_parts=(OPTIMIZER,), trace=short)
        assert submit(scheduler, "b", state=STATE, host_parts=(OPTIMIZER,), trace=short) is fits
    scheduler = cluster(group("g0", device_bytes=200), policy=Policy.PACK)
    [refused] = [each for each in _submitted(scheduler) if isinstance(each, do.Refuse)]
    assert "its state of 800 bytes does not fit on the devices" in refused.reason


def _submitted(scheduler: Scheduler) -> list[do.Command]:
    return scheduler.handle(ev.JobSubmitted(job=JobSpec(id=JobId("c"), train_devices=8, state=STATE)), now=1.0)


def test_the_next_phase_is_expected_to_need_what_it_needed_a_period_before() -> None:
    scheduler = lone(trace=TWICE)

    def expected() -> tuple[Parts, Parts]:
        [phase] = expected_phases(scheduler.rooms.groups.named(NodeGroupId("g0")), scheduler.rooms.rules)
        return phase.owner.parts, phase.later_parts

    for number, parts in enumerate(((WEIGHTS,), (WEIGHTS, OPTIMIZER), (WEIGHTS,))):
        now = 5.0 + 60 * number
        loaded(scheduler, asked(scheduler, now, parts), now)
        ended = scheduler.handle(ev.PhaseEnded(job=JobId("a"), seconds=10.0), now=now + 10)
        if number == 0:
            assert expected() == (ALL_PARTS, (WEIGHTS,)), "nothing is known of the second phase"
        loaded(scheduler, ended, now + 10)
    assert expected() == ((WEIGHTS, OPTIMIZER), (WEIGHTS, OPTIMIZER))


def test_jobs_that_keep_another_part_on_the_host_have_other_needs() -> None:
    scheduler = lone(trace=TWICE)
    submit(scheduler, "b", state=STATE, host_parts=(OPTIMIZER,), trace=TWICE)
    run_phase(scheduler, "a", now=5.0)
    first, second = scheduler.rooms.jobs.every()
    assert first.needs != second.needs
