"""A job whose period or phases are no longer what was planned is planned with what they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.small_cluster import cluster, group, run_phase, submit, trace
from tailrace.cluster import events as ev
from tailrace.cluster.ids import JobId
from tailrace.cluster.jobs.record import JobRecord
from tailrace.cluster.scheduler import Scheduler
from tailrace.cluster.settings import Policy

PLANNED_S, PHASE_S = 100.0, 20.0


class Job:
    """Job a, planned with a phase of 20 s in each 100 s. It runs ten periods as planned."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.now, self.num_phases = scheduler, 0.0, 0
        assert submit(scheduler, "a", trace=trace(PLANNED_S, PHASE_S), steps=1000)
        for _ in range(10):
            self.run_period(PLANNED_S, PHASE_S)

    @property
    def record(self) -> JobRecord:
        return self.scheduler.rooms.jobs.named(JobId("a"))

    @property
    def planned(self) -> tuple[float, float]:
        """Seconds of a period and of its phase."""
        assert self.record.trace is not None
        return self.record.trace.period_s, self.record.trace.busy_s

    def run_period(self, period_s: float, phase_s: float) -> None:
        run_phase(self.scheduler, "a", now=self.now, seconds=phase_s)
        self.now += period_s

    def learns_after(self, period_s: float, phase_s: float) -> int:
        """Phases until the plan is exact."""
        for number in range(1, 201):
            self.run_period(period_s, phase_s)
            if self.planned == (period_s, phase_s):
                return number
        raise AssertionError(f"not learned in 200 phases: {self.planned}")


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize(
    ("period_s", "phase_s", "expected"),
    [
        (130.0, 20.0, 4),
        (200.0, 20.0, 4),
        (50.0, 20.0, 4),
        (200.0, 40.0, 4),
        (130.0, 26.0, 4),
        (107.0, 20.0, 7),
        (60.0, 10.0, 6),
        (120.0, 40.0, 3),
    ],
)
def test_another_period_is_learned_after_three_of_it(
    policy: Policy, period_s: float, phase_s: float, expected: int
) -> None:
    """A period is over when the first phase of the next one is complete, hence four phases. Phases that are longer are
    seen when they end."""
    job = Job(cluster(policy=policy))
    assert job.learns_after(period_s, phase_s) <= expected
    before = job.planned
    for _ in range(20):
        job.run_period(period_s, phase_s)
    assert job.planned == before


@pytest.mark.parametrize("policy", Policy)
def test_a_job_whose_period_grows_is_followed_all_the_time(policy: Policy) -> None:
    """A hundredth each time, for 150 periods: four times as long at the end."""
    job = Job(cluster(policy=policy))
    for number in range(150):
        period_s, phase_s = PLANNED_S * 1.01**number, PHASE_S * 1.01**number
        job.run_period(period_s, phase_s)
        planned_s, planned_phase_s = job.planned
        assert period_s <= 1.12 * planned_s, number
        assert phase_s <= 1.12 * planned_phase_s, number


def test_the_slots_of_a_job_that_is_alone_are_those_of_its_new_period() -> None:
    job = Job(cluster(policy=Policy.SPREAD))
    for _ in range(5):
        asked_at = job.now
        job.run_period(137.0, 20.0)
    seat = job.record.seat
    assert seat is not None
    assert seat.reservation is not None
    placed = seat.reservation.placement
    assert placed.footprint.period == 137
    assert (placed.start - asked_at) % 137 == 0


def test_the_end_of_a_job_is_forecast_with_what_was_learned() -> None:
    job = Job(cluster())
    assert job.record.ends_at(job.now) == job.now + 990 * 100.0
    for _ in range(4):
        job.run_period(200.0, 40.0)
    assert job.record.ends_at(job.now) == job.now + 986 * 200.0


@pytest.mark.parametrize(("period_s", "fits"), [(100.0, False), (200.0, True)])
def test_a_job_that_uses_its_group_less_than_was_planned_leaves_room_for_another(period_s: float, fits: bool) -> None:
    """The other one needs seven tenths of the time, and all jobs together may have eight tenths."""
    job = Job(cluster(policy=Policy.PACK, max_wait_share=1.0))
    for _ in range(6):
        job.run_period(period_s, 20.0)
    assert submit(job.scheduler, "b", now=job.now, trace=trace(100, 70), steps=10) == fits


def test_what_a_job_waits_is_not_taken_for_its_period() -> None:
    """It asks every 140 s, because it waits for 40 s each time."""
    job = Job(cluster(policy=Policy.PACK))
    for _ in range(10):
        scheduler, name = job.scheduler, JobId("a")
        scheduler.handle(ev.PhaseAsked(job=name, operations_s=(PHASE_S,)), now=job.now)
        job.record.log.late_in_phase_s += 40.0
        scheduler.handle(ev.PhaseEnded(job=name, seconds=PHASE_S), now=job.now + 60.0)
        job.now += 140.0
    assert job.planned == (PLANNED_S, PHASE_S)


def test_a_phase_that_failed_makes_no_period_longer() -> None:
    job = Job(cluster(policy=Policy.PACK))
    for _ in range(10):
        scheduler, name = job.scheduler, JobId("a")
        scheduler.handle(ev.PhaseAsked(job=name, operations_s=(PHASE_S,)), now=job.now)
        scheduler.handle(ev.PhaseEnded(job=name, seconds=PHASE_S, failed=True), now=job.now + 20.0)
        job.now += 50.0
        job.run_period(PLANNED_S, PHASE_S)
    assert job.planned == (PLANNED_S, PHASE_S)
    assert job.record.drift.measured.periods[-1].seconds == PLANNED_S
    assert job.record.log.num_phases == 20


def test_one_very_long_period_and_two_very_long_phases_are_accidents() -> None:
    job = Job(cluster(policy=Policy.SPREAD, drift_cycles=3))
    for period_s, phase_s in [(1000.0, 20.0), (100.0, 20.0), (100.0, 99.0), (100.0, 99.0), (100.0, 20.0)] * 3:
        job.run_period(period_s, phase_s)
    assert job.planned == (PLANNED_S, PHASE_S)


@pytest.mark.parametrize("drift_cycles", [1, 2, 5, 9])
def test_the_setting_says_how_many_periods_must_differ(drift_cycles: int) -> None:
    job = Job(cluster(group("g0"), policy=Policy.PACK, drift_cycles=drift_cycles))
    assert job.learns_after(150.0, 20.0) == drift_cycles + 1


def test_a_period_that_varies_around_the_plan_stays_as_planned() -> None:
    """Its phases do not come at the planned times, so it is planned again: with the same period."""
    job = Job(cluster(policy=Policy.SPREAD))
    pauses = []
    for number in range(40):
        job.run_period(119.0 if number % 8 < 4 else 81.0, PHASE_S)
        pauses.append(job.record.drift.pause)
    assert max(pauses) > 0, "it was planned again"
    assert job.planned == (PLANNED_S, PHASE_S)


@pytest.mark.parametrize("period_s", [103.0, 97.0])
def test_a_small_difference_is_learned_where_places_add_it_up(period_s: float) -> None:
    job = Job(cluster(policy=Policy.SPREAD))
    assert job.learns_after(period_s, PHASE_S) <= 12


Pattern = Callable[[int], float]


@pytest.mark.parametrize(
    "wave", [lambda number: 100.0 + 15.0 * (-1) ** number, lambda number: 100.0 + 12.0 * (number % 3)]
)
def test_periods_that_vary_by_less_than_a_fifth_keep_the_plan_near(wave: Pattern) -> None:
    job = Job(cluster(policy=Policy.SPREAD))
    for number in range(100):
        job.run_period(wave(number), PHASE_S)
        assert abs(job.planned[0] - 105.0) <= 15.0
