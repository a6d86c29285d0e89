"""Plans of shared groups, and the forecast of slowdowns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.cluster.demand.trace import DemandSegment, DemandTrace
from tailrace.cluster.ids import JobId
from tailrace.cluster.job_spec import JobSpec, StateBytes
from tailrace.cluster.planning.sharing_forecast import forecast
from tailrace.cluster.planning.sharing_plan import plan_sharing
from tailrace.cluster.settings import ClusterRules, Policy


def trace(period: float, busy: float, slack: float = 0.0) -> DemandTrace:
    return DemandTrace(
        period_s=period, segments=(DemandSegment(offset_s=period - busy, duration_s=busy, slack_s=slack),)
    )


def job(name: str, period: float, busy: float, *, devices: int = 8) -> JobSpec:
    return JobSpec(id=JobId(name), train_devices=devices, rollout_devices=4, trace=trace(period, busy))


def rules(policy: Policy, **changes: float) -> ClusterRules:
    return ClusterRules(policy=policy, **changes)  # type: ignore[arg-type]


def test_two_fitted_jobs_save_half_of_the_training_devices() -> None:
    plan = plan_sharing([job("a", 289.03, 57.5), job("b", 289.03, 57.5)], rules(Policy.SPREAD))
    [group] = plan.groups
    assert [placed.shift_s for placed in group.jobs] == [0.0, 58.0]
    assert [placed.slowdown for placed in group.jobs] == [1.0, 1.0]
    assert plan.saving == pytest.approx((8 / 2) / (8 + 4))
    assert (plan.devices, plan.devices_alone) == (16, 24)


def test_a_switch_takes_away_from_the_saving() -> None:
    plan = plan_sharing([job("a", 289.03, 57.5), job("b", 289.03, 57.5)], rules(Policy.SPREAD), switch_s=8.0)
    assert plan.slowdown == pytest.approx(1 + 8.0 / 289.03, rel=1e-3)
    assert plan.saving == pytest.approx(1 - (2 / 3) * plan.slowdown)


def test_periods_that_drift_apart_are_packed_and_not_fitted() -> None:
    jobs = [job("a", 289.03, 57.5), job("b", 430.0, 83.5)]
    assert len(plan_sharing(jobs, rules(Policy.SPREAD)).groups) == 2
    packed = plan_sharing(jobs, rules(Policy.PACK))
    assert len(packed.groups) == 1
    assert packed.slowdown >= 1.0


def test_jobs_of_about_the_same_period_are_planned_in_step() -> None:
    """The one with the shorter period waits for the other a little, each time."""
    jobs = [job("a", 289.03, 57.5), job("b", 284.8, 83.5)]
    plan = plan_sharing(jobs, rules(Policy.SPREAD))
    assert len(plan.groups) == 1
    assert 1.0 < plan.slowdown < 289.03 / 284.8
    assert len(plan_sharing(jobs, rules(Policy.SPREAD, drift=0.01)).groups) == 2


@pytest.mark.parametrize("policy", [Policy.ISOLATED, Policy.PACK, Policy.SPREAD])
def test_a_job_of_a_long_period_has_a_place_beside_jobs_of_short_ones(policy: Policy) -> None:
    """Slots that are short enough for a period of 2 s must be enough for one of 1,000 s."""
    jobs = [job("short", 2.0, 0.3), job("long", 1000.0, 57.5), job("longer", 2000.0, 57.5)]
    plan = plan_sharing(jobs, rules(policy))
    assert plan.without_place == ()
    assert {placed.job.id for placed in plan.jobs} == {"short", "long", "longer"}
    days = [job("a", 1e6, 1e5), job("b", 1e6, 1e5)]
    shared = plan_sharing(days, rules(policy))
    assert len(shared.groups) == (2 if policy is Policy.ISOLATED else 1)


def test_periods_that_differ_by_more_than_a_thousand_times_are_not_planned_together() -> None:
    jobs = [job("tiny", 0.9, 0.1), job("long", 1000.0, 57.5)]
    with pytest.raises(ValueError, match=r"the period of long \(1000 s\) is more than 1,000 times that of tiny"):
        plan_sharing(jobs, rules(Policy.SPREAD))
    others = [job("tiny", 0.9, 0.1, devices=4), job("long", 1000.0, 57.5)]
    assert len(plan_sharing(others, rules(Policy.SPREAD)).groups) == 2, "they never share a group"


def test_isolated_jobs_have_a_group_each_and_save_nothing() -> None:
    plan = plan_sharing([job("a", 100.0, 10.0), job("b", 100.0, 10.0)], rules(Policy.ISOLATED))
    assert [len(group.jobs) for group in plan.groups] == [1, 1]
    assert (plan.saving, plan.slowdown) == (0.0, 1.0)


@pytest.mark.parametrize("policy", [Policy.PACK, Policy.SPREAD])
def test_neither_duty_nor_jobs_of_a_group_exceed_their_limits(policy: Policy) -> None:
    jobs = [job(str(number), 100.0, 20.0) for number in range(7)]
    by_jobs = plan_sharing(jobs, rules(policy, max_jobs_per_group=3))
    assert [len(group.jobs) for group in by_jobs.groups] == [3, 3, 1]
    by_duty = plan_sharing(jobs, rules(policy, max_jobs_per_group=9, max_duty=0.4))
    assert [len(group.jobs) for group in by_duty.groups] == [2, 2, 2, 1]
    assert all(group.duty <= 0.4 + 1e-9 for group in by_duty.groups)


def test_jobs_beyond_the_allowed_groups_have_no_place() -> None:
    jobs = [job(str(number), 100.0, 60.0) for number in range(3)]
    plan = plan_sharing(jobs, rules(Policy.SPREAD), max_groups=2)
    assert [each.id for each in plan.without_place] == ["2"]
    assert len(plan.jobs) == 2


@pytest.mark.parametrize("policy", [Policy.PACK, Policy.SPREAD])
def test_the_states_of_the_jobs_of_a_group_fit_into_its_host_memory(policy: Policy) -> None:
    sizes = {"a": 60, "b": 50, "c": 40, "d": 101}
    jobs = [replace(job(name, 100.0, 10.0), state=StateBytes(weights=size)) for name, size in sizes.items()]
    free = plan_sharing(jobs, rules(policy, max_jobs_per_group=4))
    assert len(free.groups) == 1
    plan = plan_sharing(jobs, rules(policy, max_jobs_per_group=4), host_bytes=100)
    assert sorted(group.state_bytes for group in plan.groups) == [50, 100, 101]
    assert plan.without_place == (), "the state of a job that is alone stays on the devices"


def test_a_busy_job_has_a_group_to_itself_whatever_its_duty() -> None:
    plan = plan_sharing([job("a", 100.0, 95.0)], rules(Policy.SPREAD, max_duty=0.8))
    assert [placed.job.id for placed in plan.jobs] == ["a"]


def test_groups_are_shared_by_jobs_of_one_size_only() -> None:
    plan = plan_sharing([job("a", 100.0, 10.0), job("b", 100.0, 10.0, devices=16)], rules(Policy.PACK))
    assert [(group.devices, len(group.jobs)) for group in plan.groups] == [(8, 1), (16, 1)]


def test_two_serial_jobs_that_need_the_whole_time_take_turns() -> None:
    found = forecast([trace(10.0, 10.0), trace(10.0, 10.0)], [0.0, 0.0])
    assert found.slowdowns == pytest.approx((2.0, 2.0), rel=0.02)
    assert found.switches_per_step == pytest.approx(1.0, rel=0.02)
    for before, after in zip(found.uses, found.uses[1:], strict=False):
        assert after.switch_at >= before.end


def test_a_wait_within_the_slack_makes_nothing_slower() -> None:
    without, within = (forecast([trace(10.0, 3.0, slack), trace(10.0, 3.0, slack)], [0.0, 1.0]) for slack in (0.0, 2.5))
    assert max(within.slowdowns) == 1.0
    assert max(without.slowdowns) > 1.0


def test_short_periods_are_planned_in_hundredths() -> None:
    """In slots of a second, phases of 0.3 s would take a whole second each."""
    plan = plan_sharing([job("a", 2.0, 0.3), job("b", 2.0, 0.3)], rules(Policy.SPREAD, guard_s=0.0, bucket_s=0.0))
    [group] = plan.groups
    assert [placed.shift_s for placed in group.jobs] == pytest.approx([0.0, 0.3])
