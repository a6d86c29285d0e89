"""Random histories with faults. Each test is named after the property of the specification that it holds."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, given, settings

from cluster.random_cluster import History, World, histories
from tailrace.cluster import commands as do
from tailrace.cluster import journal
from tailrace.cluster.jobs import Stage
from tailrace.cluster.rules import Policy

NUM_HISTORIES = max(1, round(300 * float(os.environ.get("TAILRACE_HISTORIES", "1"))))
many = settings(
    max_examples=NUM_HISTORIES, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@many
@given(histories())
def test_4_one_job_computes_on_a_group_its_state_is_loaded_and_its_operations_come_in_order(history: History) -> None:
    World(history).run()  # the world asserts it at every lease and transfer


@many
@given(histories())
def test_1_segments_are_reserved_in_free_slots_and_released_exactly(history: History) -> None:
    def look(world: World) -> None:
        world.scheduler.state.timetable.check()

    world = World(history)
    world.run(look)
    timetable = world.scheduler.state.timetable
    assert all(timetable.num_jobs(group.id) == 0 for group in history.started.groups)
    assert all(timetable.busy(group.id).num_busy == 0 for group in history.started.groups)


@many
@given(histories())
def test_5_no_starvation_every_job_comes_to_its_end(history: History) -> None:
    world = World(history)
    world.run()
    assert all(job.is_over for job in world.jobs.values()), world.scheduler.waits(world.now)
    assert all(job.stage is Stage.ENDED for job in world.scheduler.state.jobs.values())
    assert world.scheduler.waits(world.now) == []


@many
@given(histories())
def test_9_the_duty_cap_is_never_exceeded_by_admission(history: History) -> None:
    rules = history.started.rules

    def look(world: World) -> None:
        for command in world.entries[-1].commands:
            if isinstance(command, do.Place | do.Move):
                group = world.scheduler.state.groups[command.group if isinstance(command, do.Place) else command.target]
                assert len(group.jobs) <= rules.max_jobs_per_group
                assert len(group.jobs) <= 1 or group.duty <= rules.max_duty + 1e-6
                assert len(group.jobs) <= 1 or rules.policy is not Policy.ISOLATED

    World(history).run(look)


@many
@given(histories())
def test_10_after_a_failure_or_a_crash_the_others_proceed(history: History) -> None:
    world = World(history)
    world.run()
    state = world.scheduler.state
    assert state.free_rollout_devices == state.num_rollout_devices
    assert all(group.queue.is_idle and not group.jobs for group in state.groups.values())


@many
@given(histories())
def test_a_journal_replays_to_the_same_commands(history: History) -> None:
    world = World(history)
    world.run()
    lines = [journal.encode(entry) for entry in world.entries]
    replayed = journal.replay(journal.decode(line) for line in lines)
    assert {id: job.stage for id, job in replayed.state.jobs.items()} == {
        id: job.stage for id, job in world.scheduler.state.jobs.items()
    }


@many
@given(histories())
def test_at_any_moment_every_job_that_waits_is_named(history: History) -> None:
    def look(world: World) -> None:
        told = " ".join(wait.what for wait in world.scheduler.waits(world.now))
        for job in world.scheduler.state.jobs.values():
            waits_for_phase = job.phase is not None and job.phase.lease is None
            if job.stage is Stage.QUEUED or job.displaced is not None or waits_for_phase:
                assert job.id in told, (job, told)

    World(history).run(look)
