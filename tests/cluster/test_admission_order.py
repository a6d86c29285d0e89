"""The order in which queued jobs are admitted: tenants by their weights, jobs of a tenant by their response ratio."""

from __future__ import annotations

import pytest

from cluster.small_cluster import cluster, end, submit, trace
from tailrace.cluster.ids import TenantId
from tailrace.cluster.scheduler import Scheduler
from tailrace.cluster.settings import Order, Policy

A, B = TenantId("a"), TenantId("b")


def alone(**rules: object) -> Scheduler:
    """One node group, one job at a time."""
    return cluster(policy=Policy.ISOLATED, order=Order.RESPONSE, **rules)


def run_all(scheduler: Scheduler, first: str, durations_s: dict[str, float], num_jobs: int) -> list[str]:
    """Let jobs run one after the other. Return them in the order of their admission."""
    admitted, now = [first], 0.0
    while len(admitted) < num_jobs:
        now += durations_s[admitted[-1]]
        admitted += end(scheduler, admitted[-1], now=now)
    return admitted


@pytest.mark.parametrize(("steps_a", "steps_b"), [(10, 10), (10, 35), (40, 10)])
def test_a_tenant_of_twice_the_weight_is_admitted_for_twice_the_device_time(steps_a: int, steps_b: int) -> None:
    scheduler = alone(tenants=((A, 2.0),))
    durations_s: dict[str, float] = {}
    for number in range(60):
        for tenant, steps in ((A, steps_a), (B, steps_b)):
            name = f"{tenant}{number}"
            submit(scheduler, name, trace=trace(100, 20), steps=steps, tenant=tenant)
            durations_s[name] = 100.0 * steps
    served = run_all(scheduler, "a0", durations_s, 60)
    a, b = (sum(durations_s[name] for name in served if name.startswith(tenant)) for tenant in "ab")
    assert a / b == pytest.approx(2.0, rel=0.15)


def test_first_come_is_not_changed_by_weights() -> None:
    scheduler = cluster(policy=Policy.ISOLATED, order=Order.FIRST_COME, tenants=((A, 100.0),))
    for name, tenant in (("first", B), ("second", B), ("third", A)):
        submit(scheduler, name, trace=trace(100, 20), steps=1, tenant=tenant)
    assert run_all(scheduler, "first", dict.fromkeys(("first", "second"), 100.0), 3) == ["first", "second", "third"]


def test_inside_a_tenant_the_highest_response_ratio_comes_first() -> None:
    scheduler = alone()
    submit(scheduler, "running", trace=trace(100, 20), steps=2)
    submit(scheduler, "long", now=0.0, trace=trace(100, 20), steps=100)
    submit(scheduler, "unknown", now=0.0)
    submit(scheduler, "short", now=10.0, trace=trace(100, 20), steps=1)
    assert end(scheduler, "running", now=200.0) == ["short"]  # ratios 2.9, 1.06 (an hour is assumed) and 1.02
    assert end(scheduler, "short", now=300.0) == ["unknown"]


def test_equal_ratios_go_by_the_order_of_submission() -> None:
    scheduler = alone()
    for name in ("z", "y", "x"):
        submit(scheduler, name, trace=trace(100, 20), steps=1)
    assert run_all(scheduler, "z", {"z": 100.0, "y": 100.0}, 3) == ["z", "y", "x"]


def test_a_tenant_that_comes_late_gets_no_credit_and_waits_for_no_backlog() -> None:
    scheduler = alone()
    durations_s = {}
    for number in range(20):
        submit(scheduler, f"a{number}", trace=trace(100, 20), steps=1, tenant=A)
        durations_s[f"a{number}"] = 100.0
    assert run_all(scheduler, "a0", durations_s, 10)[-1] == "a9"
    for number in range(5):
        submit(scheduler, f"b{number}", now=950.0, trace=trace(100, 20), steps=1, tenant=B)
    admitted = []
    now, last = 1000.0, "a9"
    for _ in range(6):
        [last] = end(scheduler, last, now=now)
        admitted.append(last[0])
        now += 100.0
    assert sorted(admitted) == ["a", "a", "a", "b", "b", "b"], "they take turns"


def test_a_job_that_ends_early_is_charged_for_what_it_took() -> None:
    scheduler = alone()
    submit(scheduler, "a-crashes", trace=trace(100, 20), steps=1000, tenant=A)
    for number in range(3):
        submit(scheduler, f"b{number}", trace=trace(100, 20), steps=10, tenant=B)
        submit(scheduler, f"a{number}", trace=trace(100, 20), steps=10, tenant=A)
    assert end(scheduler, "a-crashes", now=50.0) == ["b0"]
    assert end(scheduler, "b0", now=1050.0) == ["a0"], "the crash cost tenant a 50 s, not 100,000"


def test_a_job_that_ends_in_the_queue_costs_nothing() -> None:
    scheduler = alone()
    submit(scheduler, "a0", trace=trace(100, 20), steps=1, tenant=A)
    submit(scheduler, "b-cancelled", trace=trace(100, 20), steps=1, tenant=B)
    submit(scheduler, "a1", trace=trace(100, 20), steps=1, tenant=A)
    submit(scheduler, "b1", trace=trace(100, 20), steps=1, tenant=B)
    assert end(scheduler, "b-cancelled", now=90.0) == []
    assert end(scheduler, "a0", now=100.0) == ["b1"]


def test_rollout_devices_count_and_training_devices_as_far_as_they_are_used() -> None:
    """Two jobs of b use as many devices as one of a: 8 * 0.25 + 2 = 4 beside 8 * 0.25 + 6 = 8."""
    scheduler = alone()
    names = []
    for number in range(12):
        for tenant, devices in ((A, 6), (B, 2)):
            name = f"{tenant}{number}"
            submit(scheduler, name, trace=trace(100, 25), steps=1, tenant=tenant, rollout_devices=devices)
            names.append(name)
    served = run_all(scheduler, "a0", dict.fromkeys(names, 100.0), 12)
    assert [sum(name.startswith(tenant) for name in served) for tenant in "ab"] == [4, 8]


def test_the_waits_name_the_job_that_is_next() -> None:
    scheduler = alone(tenants=((A, 3.0),))
    submit(scheduler, "b0", trace=trace(100, 20), steps=1, tenant=B)
    submit(scheduler, "b1", trace=trace(100, 20), steps=1, tenant=B)
    submit(scheduler, "a0", trace=trace(100, 20), steps=1, tenant=A)
    told = {wait.what.split(":")[0]: wait.what for wait in scheduler.waits(1.0)}
    assert "behind a0" in told["job b1"]
    assert "room on a node group" in told["job a0"]
