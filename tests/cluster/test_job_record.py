"""What is worked out from the record of a job."""

from __future__ import annotations

import pytest

from tailrace.cluster.demand.trace import DemandTrace, Segment
from tailrace.cluster.ids import JobId, NodeGroupId
from tailrace.cluster.job_record import JobRecord, PhaseInProgress, Seat
from tailrace.cluster.jobs import JobSpec

SEGMENTS = (Segment(offset_s=0.0, duration_s=10.0), Segment(offset_s=50.0, duration_s=20.0))
TRACE = DemandTrace(period_s=100.0, segments=SEGMENTS, steps=4)


def job(**fields: object) -> JobRecord:
    spec = JobSpec(id=JobId("a"), train_devices=8, steps=10)
    seat = Seat(group=NodeGroupId("g0"), is_dedicated=False)
    given: dict[str, object] = {"trace": TRACE, "seat": seat, "admitted_at": 0.0, "seated_at": 100.0}
    return JobRecord(spec=spec, number=1, submitted_at=0.0, **(given | fields))  # type: ignore[arg-type]


def waiting(asked_at: float, *, slack_s: float = 5.0, lease: int | None = None) -> PhaseInProgress:
    return PhaseInProgress(asked_at=asked_at, operations_s=(1.0,), slack_s=slack_s, lease=lease)


def test_a_period_has_as_many_steps_as_its_trace_says() -> None:
    assert job(num_phases=3).steps_done == 6.0
    assert job(num_phases=3, trace=None).steps_done == 3.0


def test_the_share_of_waiting_counts_from_the_first_whole_period() -> None:
    assert job(late_s=30.0).wait_share(199.0) == 0.0
    assert job(late_s=30.0).wait_share(200.0) == 0.3
    assert job(late_s=30.0, seat=None).wait_share(200.0) == 0.0
    assert job(late_s=30.0, trace=None).wait_share(200.0) == 0.0


def test_a_phase_that_waits_counts_beyond_its_slack() -> None:
    assert job(late_s=30.0, phase=waiting(180.0)).wait_share(200.0) == 0.45
    assert job(late_s=30.0, phase=waiting(198.0)).wait_share(200.0) == 0.3, "within its slack"
    assert job(late_s=30.0, phase=waiting(180.0, lease=1)).wait_share(200.0) == 0.3, "it computes"


def test_the_end_is_expected_at_the_present_pace() -> None:
    assert job().ends_at(120.0) == 120.0 + 250.0
    assert job(num_phases=3).ends_at(120.0) == 120.0 + 100.0
    assert job(num_phases=30).ends_at(120.0) == 120.0
    assert job(late_s=50.0).ends_at(200.0) == 200.0 + 2 * 250.0
    assert job(late_s=99.0).ends_at(200.0) == pytest.approx(200.0 + 10 * 250.0), "ten times as long at most"
    assert job(trace=None).ends_at(120.0) is None
    assert job(admitted_at=None).ends_at(120.0) is None


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
        record.note_phase(seconds, late_s, off_s, drift=0.2)
        assert (record.num_drifted, record.num_phases) == (expected, 1), (seconds, late_s, off_s)


def test_drift_counts_in_a_row_and_not_while_the_job_rests() -> None:
    record = job(rest=1)
    counts = []
    for seconds in (99.0, 99.0, 99.0, 10.0, 99.0):
        record.note_phase(seconds, 0.0, 0.0, drift=0.2)
        counts.append(record.num_drifted)
    assert counts == [0, 1, 2, 0, 1]


def test_the_last_eight_phases_are_remembered_beside_their_own_segments() -> None:
    record = job()
    for number in range(10):
        record.note_phase(10.0 + number, 0.0, 0.0, drift=0.2)
    assert record.ratios == [1.2, 0.65, 1.4, 0.75, 1.6, 0.85, 1.8, 0.95]
    unknown = job(trace=None)
    unknown.note_phase(10.0, 0.0, 0.0, drift=0.2)
    assert (unknown.ratios, unknown.num_phases) == ([], 1)


def test_a_rest_is_twice_as_long_as_the_last_one_and_never_too_long() -> None:
    record = job()
    rests = []
    for _ in range(7):
        record.give_rest(3)
        rests.append(record.rest)
    assert rests == [3, 6, 12, 24, 48, 64, 64]


def test_a_lease_that_is_withdrawn_leaves_the_phase_waiting() -> None:
    record = job(phase=PhaseInProgress(asked_at=1.0, operations_s=(1.0,), slack_s=0.0, lease=3, num_granted=1))
    record.withdraw_lease()
    assert record.phase == PhaseInProgress(asked_at=1.0, operations_s=(1.0,), slack_s=0.0)
    job().withdraw_lease()
