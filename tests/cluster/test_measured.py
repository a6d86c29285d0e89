"""Periods and phases of one job as they really are: the newest ones, without what the job waited."""

from __future__ import annotations

import pytest

from tailrace.cluster.demand.trace import DemandSegment, DemandTrace
from tailrace.cluster.rearranging.measured import NUM_KEPT, DriftLimits, MeasuredDemand

ONE = DemandTrace(period_s=100.0, segments=(DemandSegment(offset_s=80.0, duration_s=20.0),))
TWO = DemandTrace(
    period_s=100.0,
    segments=(
        DemandSegment(offset_s=10.0, duration_s=20.0, slack_s=5.0),
        DemandSegment(offset_s=60.0, duration_s=10.0),
    ),
    steps=3,
)
LIMITS = DriftLimits(share=0.2, num_periods=3, slot_s=1.0)


def measured(
    plan: DemandTrace, *phases: tuple[float, float], late_s: float = 0.0, place_since: float = 0.0
) -> MeasuredDemand:
    """Phases one after the other, as (asked at, seconds). Each waits for ``late_s``."""
    found = MeasuredDemand()
    note(found, plan, *phases, late_s=late_s, place_since=place_since)
    return found


def note(
    found: MeasuredDemand,
    plan: DemandTrace,
    *phases: tuple[float, float],
    late_s: float = 0.0,
    place_since: float = 0.0,
) -> None:
    for number, (asked_at, seconds) in enumerate(phases):
        segment = number % len(plan.segments)
        found.note_phase(segment, asked_at=asked_at, late_s=late_s, seconds=seconds, place_since=place_since)


def every(period_s: float, count: int, seconds: float = 20.0, first: float = 0.0) -> list[tuple[float, float]]:
    return [(first + number * period_s, seconds) for number in range(count)]


def periods_s(found: MeasuredDemand) -> list[float]:
    return [period.seconds for period in found.periods]


def test_a_period_lasts_from_one_first_phase_to_the_next_without_the_waits() -> None:
    assert periods_s(measured(ONE, *every(130.0, 3))) == [130.0, 130.0]
    assert periods_s(measured(ONE, *every(130.0, 3), late_s=30.0)) == [100.0, 100.0]
    assert periods_s(measured(TWO, (10, 20), (60, 10), (130, 20), (180, 10), (240, 20), late_s=5.0)) == [110.0, 100.0]


def test_a_period_in_which_a_phase_failed_or_the_job_moved_does_not_count() -> None:
    found = measured(ONE, *every(100.0, 2))
    found.give_up_period()
    note(found, ONE, *every(100.0, 2, first=500.0))
    assert periods_s(found) == [100.0, 100.0]
    note(found, ONE, *every(100.0, 2, first=2000.0), place_since=1900.0)
    assert periods_s(found) == [100.0, 100.0, 100.0]


@pytest.mark.parametrize(
    ("period_s", "count", "expected"),
    [(130.0, 3, 0), (130.0, 4, 3), (121.0, 4, 3), (120.0, 6, 0), (50.0, 4, 3), (200.0, 4, 3), (100.0, 9, 0)],
)
def test_the_demand_has_changed_if_three_periods_in_a_row_are_off(period_s: float, count: int, expected: int) -> None:
    assert measured(ONE, *every(period_s, count)).num_changed(ONE, LIMITS) == expected


@pytest.mark.parametrize(
    ("period_s", "count", "expected"),
    [(120.0, 7, NUM_KEPT), (106.0, 6, 0), (106.0, 7, NUM_KEPT), (94.0, 7, NUM_KEPT), (105.0, 9, 0), (95.0, 9, 0)],
)
def test_a_small_difference_counts_if_all_six_periods_have_it(period_s: float, count: int, expected: int) -> None:
    assert measured(ONE, *every(period_s, count)).num_changed(ONE, LIMITS) == expected


def test_periods_that_are_too_long_and_too_short_in_turn_show_no_other_demand() -> None:
    found = measured(ONE, *[(at, 20.0) for at in (0.0, 150.0, 200.0, 350.0, 400.0, 550.0)])
    assert found.num_changed(ONE, LIMITS) == 0


@pytest.mark.parametrize(
    ("seconds", "count", "expected"),
    [(40.0, 2, 0), (40.0, 3, 3), (25.0, 3, 3), (24.0, 3, 0), (10.0, 5, 0), (10.0, NUM_KEPT, NUM_KEPT), (16.0, 9, 0)],
)
def test_three_longer_phases_count_and_six_shorter_ones(seconds: float, count: int, expected: int) -> None:
    """A fifth of the phase, not of the period: a phase of twice its length is in the way of others."""
    assert measured(ONE, *every(100.0, count, seconds)).num_changed(ONE, LIMITS) == expected


def test_phases_are_not_compared_more_finely_than_by_slots() -> None:
    plan = DemandTrace(period_s=100.0, segments=(DemandSegment(offset_s=0.0, duration_s=1.0),))
    assert measured(plan, *every(100.0, 3, 2.0)).num_changed(plan, LIMITS) == 0
    assert measured(plan, *every(100.0, 3, 2.1)).num_changed(plan, LIMITS) == 3


def test_the_forecast_has_the_median_of_the_newest_periods_and_nine_of_ten_phases() -> None:
    found = measured(ONE, (0, 20), (100, 21), (230, 22), (360, 90), (500, 24), (620, 25))
    forecast = found.forecast(ONE, 3)
    assert forecast.period_s == 130.0
    assert forecast.segments == (DemandSegment(offset_s=105.0, duration_s=25.0),)
    assert found.forecast(ONE, NUM_KEPT).segments[0].duration_s == 25.0, "one of six is an accident"


def test_the_pauses_between_the_phases_of_a_period_are_learned_one_by_one() -> None:
    found = measured(TWO, (0, 25), (80, 10), (150, 25), (230, 10), (300, 25))
    segments = (
        DemandSegment(offset_s=15.0, duration_s=25.0, slack_s=5.0),
        DemandSegment(offset_s=95.0, duration_s=10.0),
    )
    assert found.forecast(TWO, 3) == DemandTrace(period_s=150.0, segments=segments, steps=3)


def test_without_a_whole_period_only_the_phases_are_longer() -> None:
    found = measured(TWO, (10, 30))
    segments = (
        DemandSegment(offset_s=10.0, duration_s=30.0, slack_s=5.0),
        DemandSegment(offset_s=70.0, duration_s=10.0),
    )
    assert found.forecast(TWO, 3) == DemandTrace(period_s=110.0, segments=segments, steps=3)


def test_the_period_is_another_one_only_if_all_are_longer_or_all_are_shorter() -> None:
    for last, expected in ((99.0, False), (100.0, False), (100.5, True)):
        found = measured(ONE, (0, 20), (104, 20), (208, 20), (208 + last, 20))
        assert found.is_period_other(ONE, NUM_KEPT) == expected
    assert measured(ONE, *every(99.0, 2)).is_period_other(ONE, NUM_KEPT)
    assert not measured(ONE, (0, 20)).is_period_other(ONE, NUM_KEPT)


def test_phases_alone_are_learned_without_another_period() -> None:
    forecast = measured(TWO, (0, 25), (80, 50), (150, 25), (230, 50)).forecast_phases(TWO, 3)
    segments = (
        DemandSegment(offset_s=10.0, duration_s=25.0, slack_s=5.0),
        DemandSegment(offset_s=60.0, duration_s=40.0),
    )
    assert forecast == DemandTrace(period_s=100.0, segments=segments, steps=3)


def test_a_phase_is_planned_no_longer_than_until_the_next_one() -> None:
    found = measured(ONE, (0, 20), (30, 20), (60, 20), (90, 20), (180, 80), (270, 80))
    forecast = found.forecast(ONE, NUM_KEPT)
    assert (forecast.period_s, forecast.segments[0].duration_s) == (30.0, 30.0)
    assert forecast.segments[0].offset_s == 0.0


def test_reports_that_contradict_each_other_change_no_plan() -> None:
    found = measured(TWO, (0, 20), (10, 20), (100, 20), (110, 20), (200, 20), late_s=15.0)
    assert found.forecast(TWO, 3) == TWO
    assert periods_s(measured(ONE, (0, 20), (0, 20), (0, 20), late_s=5.0)) == []


def test_only_the_newest_are_remembered() -> None:
    found = measured(ONE, *every(100.0, 20))
    found.keep(NUM_KEPT)
    assert (len(found.periods), len(found.durations_s[0])) == (NUM_KEPT, NUM_KEPT)
    found.keep(2)
    assert (len(found.periods), len(found.durations_s[0])) == (2, 2)
    found.forget()
    assert (found.periods, found.durations_s[0], found.present) == ([], [], None)
