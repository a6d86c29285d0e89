"""Closed systems whose outcome the specification states: shares of tenants, and slowdown by policy (4.2)."""

from __future__ import annotations

import random
from statistics import mean

import pytest

from cluster.arbitration.closed_loop import ClosedLoop, SerialJob
from tailrace.cluster.ids import JobId, TenantId
from tailrace.cluster.settings import ClusterRules, Grain, Ratio, Transfers

OPERATIONS_30B_S, CYCLE_30B_S = (19.62, 56.35, 7.57), 284.80
OPERATIONS_7B_S, CYCLE_7B_S = (9.66, 38.08, 9.76), 289.03
SETUP_S = 19.0
SEEDS = range(3)


def crowd(tenant: str, num_jobs: int, *, operation_s: float = 20.0) -> list[SerialJob]:
    return [
        SerialJob(
            id=JobId(f"{tenant}{number}"),
            tenant=TenantId(tenant),
            operations_s=(operation_s,),
            think_s=15.0,
            load_s=4.0,
            jitter=0.2,
        )
        for number in range(num_jobs)
    ]


@pytest.mark.parametrize(("num_a", "num_b"), [(3, 3), (3, 6), (5, 3)])
@pytest.mark.parametrize("ratio", Ratio)
def test_a_tenant_of_twice_the_weight_gets_twice_the_share(ratio: Ratio, num_a: int, num_b: int) -> None:
    jobs = [*crowd("a", num_a), *crowd("b", num_b, operation_s=35.0)]
    loop = ClosedLoop(jobs, ClusterRules(ratio=ratio, tenants=((TenantId("a"), 2.0),), prefetch=False))
    loop.run(until=40_000.0)
    # A switch is part of a turn and is paid by its tenant; all of these cost 4 s.
    a, b = (sum(job.busy_s + 4.0 * len(job.waits) for job in jobs if job.tenant == tenant) for tenant in "ab")
    assert a / b == pytest.approx(2.0, rel=0.15)


def test_tenants_of_equal_weight_share_equally_however_many_jobs_they_have() -> None:
    jobs = [*crowd("a", 3), *crowd("b", 9)]
    loop = ClosedLoop(jobs, ClusterRules())
    loop.run(until=40_000.0)
    a, b = (sum(job.busy_s for job in jobs if job.tenant == tenant) for tenant in "ab")
    assert a / b == pytest.approx(1.0, rel=0.15)


def slowdown(
    rules: ClusterRules,
    *,
    num_jobs: int,
    operations_s: tuple[float, ...] = OPERATIONS_30B_S,
    cycle_s: float = CYCLE_30B_S,
) -> tuple[float, float]:
    """Return the mean time of a cycle over its time alone, and the switches per step."""
    ratios, switches = [], []
    for seed in SEEDS:
        chance = random.Random(seed)
        jobs = [
            SerialJob(
                id=JobId(f"j{number}"),
                operations_s=operations_s,
                think_s=cycle_s - sum(operations_s),
                offload_s=SETUP_S / 2,
                load_s=SETUP_S / 2,
                first_at=chance.uniform(0, cycle_s),
                jitter=0.1,
            )
            for number in range(num_jobs)
        ]
        loop = ClosedLoop(jobs, rules, seed=seed)
        loop.run(until=100 * cycle_s)
        ratios += [(job.phases_ended[-1] - job.phases_ended[5]) / (len(job.phases_ended) - 6) / cycle_s for job in jobs]
        switches.append(loop.num_switches / sum(len(job.phases_ended) for job in jobs))
    return mean(ratios), mean(switches)


def toy(ratio: Ratio, grain: Grain, hold_s: float = 0.0) -> ClusterRules:
    transfers = Transfers(fixed_s=SETUP_S / 2)
    return ClusterRules(ratio=ratio, grain=grain, hold_s=hold_s, prefetch=False, transfers=transfers)


OPERATION_FCFS, OPERATION_HRRS = toy(Ratio.FIRST_COME, Grain.OPERATION), toy(Ratio.RESPONSE, Grain.OPERATION)
VARIANT, LEASE = toy(Ratio.EXECUTION, Grain.OPERATION), toy(Ratio.RESPONSE, Grain.PHASE)
HELD = toy(Ratio.RESPONSE, Grain.OPERATION, SETUP_S)


@pytest.mark.parametrize(
    ("rules", "times", "switches"),
    [
        pytest.param(OPERATION_FCFS, 1.42, 2.6, id="fcfs"),
        pytest.param(OPERATION_HRRS, 1.42, 2.6, id="hrrs"),
        pytest.param(VARIANT, 1.20, None, id="hrrs-execution"),
        pytest.param(LEASE, 1.10, 1.0, id="lease"),
        pytest.param(HELD, 1.10, 1.0, id="hold"),
    ],
)
def test_three_jobs_of_30b_are_as_slow_as_the_specification_says(
    rules: ClusterRules, times: float, switches: float | None
) -> None:
    found, found_switches = slowdown(rules, num_jobs=3)
    assert found == pytest.approx(times, rel=0.03)
    assert switches is None or found_switches == pytest.approx(switches, abs=0.15)


def test_four_jobs_of_7b_gain_most_from_leases() -> None:
    by_operation, _ = slowdown(OPERATION_HRRS, num_jobs=4, operations_s=OPERATIONS_7B_S, cycle_s=CYCLE_7B_S)
    leased, _ = slowdown(LEASE, num_jobs=4, operations_s=OPERATIONS_7B_S, cycle_s=CYCLE_7B_S)
    assert (by_operation, leased) == (pytest.approx(1.58, rel=0.03), pytest.approx(1.10, rel=0.03))


def test_two_jobs_gain_little() -> None:
    by_operation, _ = slowdown(OPERATION_HRRS, num_jobs=2)
    leased, _ = slowdown(LEASE, num_jobs=2)
    assert 1.06 <= by_operation <= 1.16
    assert 1.04 <= leased <= 1.075


def test_prefetches_hide_loads() -> None:
    without, _ = slowdown(LEASE, num_jobs=3)
    ahead, _ = slowdown(ClusterRules(transfers=LEASE.transfers), num_jobs=3)
    assert ahead < without - 0.01
