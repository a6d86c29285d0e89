"""What is worked out from the record of a job."""

from __future__ import annotations

import pytest

from tailrace.cluster.demand.trace import DemandSegment, DemandTrace
from tailrace.cluster.groups.seat import Seat
from tailrace.cluster.ids import JobId, NodeGroupId
from tailrace.cluster.job_spec import JobSpec
from tailrace.cluster.jobs.record import JobRecord
from tailrace.cluster.phases.log import PhaseInProgress, PhaseLog

SEGMENTS = (DemandSegment(offset_s=0.0, duration_s=10.0), DemandSegment(offset_s=50.0, duration_s=20.0))
TRACE = DemandTrace(period_s=100.0, segments=SEGMENTS, steps=4)
SEAT = Seat(group=NodeGroupId("g0"), is_dedicated=False)


def job(
    *,
    trace: DemandTrace | None = TRACE,
    seat: Seat | None = SEAT,
    admitted_at: float | None = 0.0,
    seated_at: float = 100.0,
    **log: object,
) -> JobRecord:
    """``log``: what is known about its phases."""
    spec = JobSpec(id=JobId("a"), train_devices=8, steps=10)
    phases = PhaseLog(seated_at=seated_at, **log)  # type: ignore[arg-type]
    return JobRecord(spec=spec, number=1, submitted_at=0.0, trace=trace, seat=seat, admitted_at=admitted_at, log=phases)


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


def test_a_lease_that_is_withdrawn_leaves_the_phase_waiting() -> None:
    log = PhaseLog(phase=PhaseInProgress(asked_at=1.0, operations_s=(1.0,), slack_s=0.0, lease=3, num_granted=1))
    log.withdraw_lease()
    assert log.phase == PhaseInProgress(asked_at=1.0, operations_s=(1.0,), slack_s=0.0)
    PhaseLog().withdraw_lease()
