"""Random histories of jobs whose periods and phases grow, jump and become shorter while they run.

``scheduler.check()`` runs after each event, and the world checks every lease and transfer (``random_cluster.py``).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from cluster.random_cluster import OPERATIONS, History, SimulatedJob, World
from cluster.random_histories import drifting_histories
from tailrace.cluster import events as ev
from tailrace.cluster import journal
from tailrace.cluster.settings import Grain

FEW, MANY = 15, 500


def number_of(count: int) -> settings:
    return settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def every_job_ends_and_the_journal_replays(history: History) -> None:
    world = World(history)
    world.run()
    assert all(job.is_over for job in world.jobs.values()), world.scheduler.waits(world.now)
    assert not world.scheduler.rooms.jobs.every()
    assert world.scheduler.waits(world.now) == []
    assert all(queue.is_idle for queue in world.scheduler.rooms.phases.queues.values())
    replayed = journal.replay(journal.decode(journal.encode(entry)) for entry in world.entries)
    assert replayed.rooms.watch == world.scheduler.rooms.watch


def what_a_job_has_become_is_learned(history: History) -> None:
    """Once a job has kept to the same times in the same place for so many whole periods as count as drift, and two
    more, its plan has the period that it has."""
    world = World(history)
    rules = world.rules
    since: dict[str, tuple[object, int]] = {}
    """What a job does now and where, and its period when that began."""

    def look(world: World) -> None:
        event = world.entries[-1].event
        if not isinstance(event, ev.PhaseEnded) or world.jobs[event.job].is_over:
            return
        job, record = world.jobs[event.job], world.scheduler.rooms.jobs.named(event.job)
        period = job.num_phases // len(job.trace.segments)
        state = (job.factors, record.log.seated_at, record.trace is None)
        if event.job not in since or since[event.job][0] != state:
            since[event.job] = (state, period)
        if period - since[event.job][1] < rules.drift_cycles + 2 or record.trace is None:
            return
        planned_s, real_s = record.trace.period_s, job.period_s + gaps_s(job, rules.grain)
        assert abs(planned_s - real_s) <= max(rules.drift * planned_s, rules.slot_s) + 1e-6, (event.job, job.factors)

    world.run(look)


def gaps_s(job: SimulatedJob, grain: Grain) -> float:
    """Seconds of a period that pass between the operations of its phases."""
    return 0.5 * (OPERATIONS - 1) * len(job.trace.segments) if grain is Grain.OPERATION else 0.0


PROPERTIES = {
    "ends": (every_job_ends_and_the_journal_replays, drifting_histories()),
    "learned": (what_a_job_has_become_is_learned, drifting_histories(has_faults=False)),
}


@pytest.mark.parametrize("name", PROPERTIES)
def test_some_histories_of_jobs_that_change(name: str) -> None:
    _try(name, FEW)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", PROPERTIES)
def test_500_histories_of_jobs_that_change(name: str) -> None:
    _try(name, MANY)


def _try(name: str, count: int) -> None:
    holds, drawn = PROPERTIES[name]
    tested: Callable[[], None] = number_of(count)(given(drawn)(holds))
    tested()
