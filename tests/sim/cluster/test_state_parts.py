"""Parts of the state of simulated jobs: where they are, which are needed, and what it saves to move only these."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from sim.cluster.clusters import small
from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster.events import Direction
from tailrace.cluster.ids import JobId, NodeGroupId, NodeId
from tailrace.cluster.job_spec import ALL_PARTS, StateBytes, StatePart
from tailrace.cluster.scheduler import Scheduler
from tailrace.cluster.settings import NodeGroup
from tailrace.sim.cluster.group_memory import Bandwidths, DevicesFull, GroupMemory
from tailrace.sim.cluster.result import ClusterFigures, simulate_cluster
from tailrace.sim.cluster.sim_group import SchedulerError
from tailrace.sim.cluster.step_times import Overlap, StateUse, StepTimes, alone_s, demand_trace, phase_shapes

A, B, C = JobId("a"), JobId("b"), JobId("c")
WEIGHTS, GRADIENTS, OPTIMIZER = StatePart
REST = (GRADIENTS, OPTIMIZER)
STATE = StateBytes(weights=10, gradients=10, optimizer=60)
LAZY, HOST = StateUse(is_lazy=True), StateUse(is_lazy=True, host_step_s=5.0)
STEP = StepTimes(rollout_s=60.0, operations_s=(10.0, 20.0, 10.0))


def memory(*jobs: JobId, device: int, host: int | None = None) -> GroupMemory:
    group = NodeGroup(id=NodeGroupId("g"), nodes=(NodeId("n"),), devices=8, device_bytes=device, host_bytes=host)
    found = GroupMemory(group)
    for job in jobs:
        found.enter(job, STATE, is_remote=False)
    return found


def move(found: GroupMemory, job: JobId, direction: Direction, parts: tuple[StatePart, ...] = ALL_PARTS) -> int:
    shifts = found.plan(job, direction, parts)
    found.apply(job, direction, shifts)
    return shifts.num_bytes


def test_parts_are_loaded_by_themselves_and_go_out_together() -> None:
    found = memory(A, device=80)
    assert move(found, A, Direction.LOAD, (WEIGHTS,)) == 10
    assert found.is_resident(A, (WEIGHTS,))
    assert not found.is_resident(A, (WEIGHTS, OPTIMIZER))
    assert move(found, A, Direction.LOAD, REST) == 70
    assert found.is_resident(A, ALL_PARTS)
    assert move(found, A, Direction.OFFLOAD) == 80
    assert not found.is_resident(A, (WEIGHTS,))


def test_what_was_prefetched_for_another_job_gives_way_but_not_what_was_loaded() -> None:
    found = memory(A, B, C, device=90)
    move(found, A, Direction.LOAD, (WEIGHTS,))
    assert move(found, B, Direction.PREFETCH) == 80
    assert move(found, A, Direction.PREFETCH, REST) == 70, "the job that is loaded has room for all of its state"
    with pytest.raises(DevicesFull, match="c needs 80 bytes on the devices of g, 10 are free"):
        found.plan(C, Direction.LOAD)
    move(found, A, Direction.OFFLOAD)
    assert move(found, C, Direction.LOAD) == 80


def test_without_room_in_host_memory_parts_come_from_disk() -> None:
    found = memory(A, B, device=80, host=100)
    bandwidths = Bandwidths(device=10.0, disk=1.0)
    assert found.plan(A, Direction.LOAD).seconds(bandwidths) == 8.0
    assert found.plan(B, Direction.LOAD, (WEIGHTS, GRADIENTS)).seconds(bandwidths) == 2.0
    assert found.plan(B, Direction.LOAD, (OPTIMIZER,)).seconds(bandwidths) == 60.0


@pytest.mark.parametrize(
    ("overlap", "use", "expected"),
    [
        (Overlap.SERIAL, StateUse(), [(0, 3, None, 0.0)]),
        (Overlap.ONE_STEP, StateUse(), [(0, 2, None, 0.0), (2, 3, None, 0.0)]),
        (Overlap.SERIAL, LAZY, [(0, 1, (WEIGHTS,), 0.0), (1, 2, None, 0.0), (2, 3, (WEIGHTS,), 0.0)]),
        (Overlap.ONE_STEP, HOST, [(0, 1, (WEIGHTS,), 0.0), (1, 2, None, 5.0), (2, 3, (WEIGHTS,), 0.0)]),
        (Overlap.SERIAL, StateUse(host_step_s=5.0), [(0, 2, None, 5.0), (2, 3, None, 0.0)]),
    ],
)
def test_the_phases_of_a_step_and_the_parts_that_they_need(overlap: Overlap, use: StateUse, expected: Any) -> None:
    shapes = phase_shapes(3, overlap, use)
    assert [(each.start, each.stop, each.parts, each.host_after_s) for each in shapes] == expected


def test_the_trace_of_a_lazy_job_has_its_phases_and_leaves_the_group_free_during_a_step_on_the_host() -> None:
    def segments(overlap: Overlap, use: StateUse) -> list[tuple[float, float, float]]:
        return [(each.offset_s, each.duration_s, each.slack_s) for each in demand_trace([STEP], overlap, use).segments]

    assert segments(Overlap.SERIAL, HOST) == [(60.0, 10.0, 0.0), (70.0, 20.0, 0.0), (95.0, 10.0, 0.0)]
    assert segments(Overlap.ONE_STEP, HOST) == [(0.0, 10.0, 25.0), (10.0, 20.0, 25.0), (60.0, 10.0, 0.0)]
    assert demand_trace([STEP], Overlap.SERIAL, HOST).period_s == 105.0
    assert alone_s([STEP], Overlap.SERIAL, host_step_s=5.0) == 105.0


def test_the_phases_of_a_lazy_step_never_overlap_by_rounding() -> None:
    operations_s = (4.70223224770397, 0.7666525716032228, 1.100950082376592)
    steps = [StepTimes(rollout_s=0.9, operations_s=operations_s), StepTimes(rollout_s=1.0, operations_s=operations_s)]
    draw = Random(0)
    for _ in range(200):
        steps = [step.scaled(draw, 0.1) for step in steps]
        assert len(demand_trace(steps, Overlap.ONE_STEP, LAZY).segments) == 6


def figures(overlap: str = "one-step", rules: dict[str, Any] | None = None, **model: Any) -> ClusterFigures:
    jobs = {"count": 3, "min_steps": 20, "max_steps": 20, "overlap": overlap, "jitter": 0.1}
    models = {"weights_gb": 10.0, "gradients_gb": 10.0, "optimizer_gb": 60.0} | model
    shared = {"policy": "pack", "max_duty": 3.0, "max_wait_share": 1.0, "hold_s": 16.0} | (rules or {})
    scenario = small(jobs=jobs, models=models, rules=shared | {"variants": {"all": {}}})
    return simulate_cluster(scenario, "all", Scheduler).figures


def test_lazy_parts_make_jobs_wait_less_and_an_optimizer_on_the_host_moves_less() -> None:
    whole, lazy = figures(), figures(lazy_state=True)
    host = figures(lazy_state=True, host_step_s=1.0)
    assert lazy.mean_slowdown < whole.mean_slowdown - 0.02
    assert host.mean_slowdown < lazy.mean_slowdown
    assert host.bytes_moved < 0.35 * lazy.bytes_moved


@pytest.mark.parametrize("overlap", ["serial", "one-step"])
@pytest.mark.parametrize("host_step_s", [0.0, 3.0])
def test_a_lone_lazy_job_takes_its_time_alone(overlap: str, host_step_s: float) -> None:
    """After its first load: while nobody else is there, all parts stay on the devices."""
    jobs = {"min_steps": 10, "max_steps": 10, "overlap": overlap, "jitter": 0.1}
    scenario = small(jobs=jobs, models={"lazy_state": True, "host_step_s": host_step_s})
    [job] = simulate_cluster(scenario, "isolated", Scheduler).jobs
    assert job.slowdown == pytest.approx(1.0, abs=0.003)


def test_a_lease_without_its_parts_is_a_mistake_of_the_scheduler() -> None:
    class LoadsTooLittle(Scheduler):
        def handle(self, event: ev.Event, *, now: float) -> list[do.Command]:
            commands = super().handle(event, now=now)
            return [
                do.Load(job=each.job, group=each.group, transfer=each.transfer, parts=(WEIGHTS,))
                if isinstance(each, do.Load)
                else each
                for each in commands
            ]

    with pytest.raises(SchedulerError, match="not on the devices"):
        simulate_cluster(small(), "spread", LoadsTooLittle)
