"""Phases that are later, longer or elsewhere than planned are counted, and their lengths are remembered."""

from __future__ import annotations

from tailrace.cluster.demand.trace import DemandSegment, DemandTrace
from tailrace.cluster.groups.seat import Seat
from tailrace.cluster.ids import JobId, NodeGroupId
from tailrace.cluster.job_spec import JobSpec
from tailrace.cluster.jobs.record import JobRecord
from tailrace.cluster.planning.fitting import Footprint, PlacedFootprint
from tailrace.cluster.planning.timetable import Reservation
from tailrace.cluster.rearranging.drift import Drift
from tailrace.cluster.rearranging.room import Rearranging
from tailrace.cluster.settings import ClusterRules

SEGMENTS = (DemandSegment(offset_s=0.0, duration_s=10.0), DemandSegment(offset_s=50.0, duration_s=20.0))
TRACE = DemandTrace(period_s=100.0, segments=SEGMENTS)
RULES = ClusterRules(drift=0.2)


def job(trace: DemandTrace | None = TRACE, **drift: int) -> JobRecord:
    """A job whose period is planned to begin at 0 s."""
    spec = JobSpec(id=JobId("a"), train_devices=8, steps=10)
    footprint = Footprint.of(TRACE, RULES.slot_s)
    group = NodeGroupId("g0")
    reservation = Reservation(job=spec.id, group=group, generation=0, placement=PlacedFootprint(footprint, 0))
    seat = Seat(group=group, is_dedicated=False, reservation=reservation)
    return JobRecord(spec=spec, number=1, submitted_at=0.0, trace=trace, seat=seat, drift=Drift(**drift))


def complete(record: JobRecord, seconds: float, *, late_s: float = 0.0, off_s: float = 0.0) -> None:
    """A phase of the job is complete. It was asked for ``off_s`` after its planned time."""
    offset_s = 0.0 if record.segment is None else record.segment.offset_s
    record.log.asked_at = offset_s + off_s
    record.log.seconds_in_phase, record.log.late_in_phase_s = seconds, late_s
    Rearranging().phase_completed(record, RULES)
    record.log.end_phase(failed=False)


def test_a_phase_drifts_if_it_is_longer_or_elsewhere_by_more_than_the_share_of_a_period() -> None:
    for seconds, late_s, off_s, expected in [
        (10.0, 0.0, 0.0, 0),
        (31.0, 0.0, 0.0, 1),
        (30.0, 0.0, 0.0, 0),
        (10.0, 21.0, 0.0, 1),
        (20.0, 11.0, 0.0, 1),
        (5.0, 20.5, 0.0, 1),
        (10.0, 0.0, 21.0, 1),
        (20.0, 0.0, 15.0, 0),
    ]:
        record = job()
        complete(record, seconds, late_s=late_s, off_s=off_s)
        assert (record.drift.num_drifted, record.log.num_phases) == (expected, 1), (seconds, late_s, off_s)


def test_drift_counts_in_a_row_and_not_during_a_pause() -> None:
    record = job(pause=1)
    counts = []
    for seconds in (99.0, 99.0, 99.0, 10.0, 99.0):
        complete(record, seconds)
        counts.append(record.drift.num_drifted)
    assert counts == [0, 1, 2, 0, 1]


def test_a_job_that_has_drifted_often_enough_is_planned_again() -> None:
    room, record = Rearranging(), job(num_drifted=RULES.drift_cycles - 2)
    for expected in (set(), {record.id}):
        record.log.seconds_in_phase = 99.0
        room.phase_completed(record, RULES)
        assert room.to_refit == expected


def test_the_last_eight_phases_are_remembered_beside_their_own_segments() -> None:
    record = job()
    for number in range(10):
        complete(record, 10.0 + number)
    assert record.drift.ratios == [1.2, 0.65, 1.4, 0.75, 1.6, 0.85, 1.8, 0.95]
    unknown = job(trace=None)
    complete(unknown, 10.0)
    assert (unknown.drift.ratios, unknown.log.num_phases) == ([], 1)


def test_a_pause_is_twice_as_long_as_the_last_one_and_never_too_long() -> None:
    drift, pauses = Drift(), []
    for _ in range(7):
        drift.pause_counting(3)
        pauses.append(drift.pause)
    assert pauses == [3, 6, 12, 24, 48, 64, 64]
