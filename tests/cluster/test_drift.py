"""Periods with phases that are later, longer or elsewhere than planned are counted."""

from __future__ import annotations

import pytest

from tailrace.cluster.demand.trace import DemandSegment, DemandTrace
from tailrace.cluster.groups.seat import Seat
from tailrace.cluster.ids import JobId, NodeGroupId
from tailrace.cluster.job_spec import JobSpec
from tailrace.cluster.jobs.record import JobRecord
from tailrace.cluster.planning.fitting import Footprint, PlacedFootprint
from tailrace.cluster.planning.timetable import Reservation
from tailrace.cluster.rearranging.drift import Drift
from tailrace.cluster.rearranging.measured import MeasuredDemand
from tailrace.cluster.rearranging.room import Rearranging, _seconds_off, limits_of
from tailrace.cluster.settings import ClusterRules

SEGMENTS = (DemandSegment(offset_s=0.0, duration_s=10.0), DemandSegment(offset_s=50.0, duration_s=20.0))
TRACE = DemandTrace(period_s=100.0, segments=SEGMENTS)
RULES = ClusterRules(drift=0.2)
G0 = NodeGroupId("g0")


def job(trace: DemandTrace | None = TRACE, **drift: int) -> JobRecord:
    """A job whose period is planned to begin at 0 s."""
    spec = JobSpec(id=JobId("a"), train_devices=8, steps=10)
    footprint = Footprint.of(TRACE, RULES.slot_s)
    reservation = Reservation(job=spec.id, group=G0, generation=0, placement=PlacedFootprint(footprint, 0))
    seat = Seat(group=G0, is_dedicated=False, reservation=reservation)
    return JobRecord(spec=spec, number=1, submitted_at=0.0, trace=trace, seat=seat, drift=Drift(**drift))


def complete(record: JobRecord, seconds: float, *, late_s: float = 0.0, off_s: float = 0.0) -> Rearranging:
    """A phase of the job is complete. It was asked for ``off_s`` after its planned time. Its length counts only where
    a whole period differs."""
    room, number = Rearranging(), record.log.num_phases
    offset_s = 0.0 if record.segment is None else record.segment.offset_s + number // len(SEGMENTS) * 100.0
    record.log.asked_at = offset_s + off_s
    record.log.seconds_in_phase, record.log.late_in_phase_s = seconds, late_s
    room.phase_completed(record, RULES)
    record.log.end_phase(failed=False)
    return room


def complete_period(record: JobRecord, *, off_s: float) -> Rearranging:
    complete(record, 10.0, off_s=off_s)
    return complete(record, 20.0)


def test_a_phase_is_off_if_it_is_longer_later_or_elsewhere_by_more_than_the_share_of_a_period() -> None:
    for seconds, late_s, off_s, expected in [
        (10.0, 0.0, 0.0, False),
        (31.0, 0.0, 0.0, True),
        (30.0, 0.0, 0.0, False),
        (10.0, 21.0, 0.0, True),
        (20.0, 11.0, 0.0, True),
        (5.0, 20.5, 0.0, True),
        (10.0, 0.0, 21.0, True),
        (20.0, 0.0, 15.0, False),
    ]:
        record = job()
        complete(record, seconds, late_s=late_s, off_s=off_s)
        found = (record.drift.is_period_off, record.drift.num_drifted, record.log.num_phases)
        assert found == (expected, 0, 1), (seconds, late_s, off_s)
        complete(record, 20.0)
        assert (record.drift.is_period_off, record.drift.num_drifted) == (False, int(expected)), "one period is over"


def test_a_period_counts_once_however_many_of_its_phases_are_off() -> None:
    record = job()
    complete(record, 10.0, off_s=30.0)
    complete(record, 20.0, off_s=30.0)
    assert record.drift.num_drifted == 1


def test_drift_counts_in_a_row_and_not_during_a_pause() -> None:
    record = job(pause=1)
    counts = []
    for off_s in (30.0, 30.0, 30.0, 0.0, 30.0):
        complete_period(record, off_s=off_s)
        counts.append(record.drift.num_drifted)
    assert counts == [0, 1, 2, 0, 1]


def test_a_job_that_has_drifted_often_enough_is_planned_again() -> None:
    record = job(num_drifted=RULES.drift_cycles - 2)
    for expected in (set(), {record.id}):
        assert complete_period(record, off_s=30.0).to_refit == expected


def test_a_job_whose_demand_nobody_knows_is_not_measured() -> None:
    unknown = job(trace=None)
    complete(unknown, 10.0)
    assert (unknown.drift.measured, unknown.log.num_phases) == (MeasuredDemand(), 1)


@pytest.mark.parametrize("repeats", [1, 3])
def test_a_job_that_is_planned_in_step_is_expected_where_its_slots_are(repeats: int) -> None:
    """Its own period is 100 s. It is planned with one of 90 s, or three times in one of 270 s. So its pauses, 70 s
    together, are a seventh shorter."""
    record = job()
    adapted = TRACE.repeated(repeats).with_period(repeats * 90.0)
    assert adapted is not None
    footprint = Footprint.of(adapted, RULES.slot_s, repeats=repeats)
    reservation = Reservation(job=record.id, group=G0, generation=0, placement=PlacedFootprint(footprint, 0))
    record.seat = Seat(group=G0, is_dedicated=False, reservation=reservation)
    second_s = 10.0 + 40.0 * 60 / 70
    for number, (asked_at, expected) in enumerate([(second_s + 180.0, 0.0), (second_s + 90.0 + 7.0, 7.0)]):
        record.log.num_phases, record.log.asked_at = 1 + 2 * number, asked_at
        assert _seconds_off(record, TRACE, 1, RULES.slot_s) == pytest.approx(expected)


def test_a_pause_is_twice_as_long_as_the_last_one_and_never_too_long() -> None:
    drift, pauses = Drift(), []
    for _ in range(7):
        drift.learned(is_other=False, limits=limits_of(RULES))
        pauses.append(drift.pause)
    assert pauses == [3, 6, 12, 24, 48, 64, 64]
    drift.learned(is_other=True, limits=limits_of(RULES))
    assert drift.pause == 3, "the job has changed, so it may change again"
