"""Forecasts with recorded periods, and plans that do not depend on the order of the jobs."""

from __future__ import annotations

import random
from itertools import permutations

import pytest

from tailrace.cluster.demand.trace import DemandSegment, DemandTrace
from tailrace.cluster.ids import JobId
from tailrace.cluster.job_spec import JobSpec
from tailrace.cluster.planning.job_orders import MOST_ORDERS, fewest_groups, orders
from tailrace.cluster.planning.sharing_forecast import PeriodTime, forecast
from tailrace.cluster.planning.sharing_plan import NUM_PLAYS, plan_sharing
from tailrace.cluster.planning.sharing_table import Allowed, SharingTable
from tailrace.cluster.settings import ClusterRules, Policy


def trace(period: float, busy: float) -> DemandTrace:
    return DemandTrace(period_s=period, segments=(DemandSegment(offset_s=period - busy, duration_s=busy),))


def job(name: str, period: float, busy: float) -> JobSpec:
    return JobSpec(id=JobId(name), train_devices=8, rollout_devices=4, trace=trace(period, busy))


TWO = [job("a", 100.0, 40.0), job("b", 100.0, 40.0)]
ALIKE = [PeriodTime(pauses_s=60.0, busy_s=40.0)] * 3
UNLIKE = [PeriodTime(pauses_s=90.0, busy_s=60.0), PeriodTime(pauses_s=30.0, busy_s=20.0)]


def test_recorded_periods_that_are_alike_are_those_of_the_trace() -> None:
    traces, starts = [trace(100.0, 40.0), trace(100.0, 40.0)], [0.0, 40.0]
    assert forecast(traces, starts, recorded=[ALIKE, ALIKE]) == forecast(traces, starts)


def test_a_job_alone_is_never_slower_however_its_periods_vary() -> None:
    found = forecast([trace(100.0, 40.0)], [0.0], recorded=[UNLIKE])
    assert found.slowdowns == (1.0,)
    lengths = {round(use.end - use.start, 6) for use in found.uses}
    assert lengths == {20.0, 60.0}
    gaps = {round(after.start - before.end, 6) for before, after in zip(found.uses, found.uses[1:], strict=False)}
    assert gaps == {30.0, 90.0}


def test_phases_that_fit_wait_for_each_other_when_periods_vary() -> None:
    [group] = plan_sharing(TWO, ClusterRules(policy=Policy.SPREAD)).groups
    assert [placed.slowdowns for placed in group.jobs] == [(1.0,), (1.0,)]
    varied = plan_sharing(TWO, ClusterRules(policy=Policy.SPREAD), recorded={JobId("a"): UNLIKE, JobId("b"): UNLIKE})
    assert len(varied.slowdowns) == len(varied.savings) == NUM_PLAYS
    assert min(varied.slowdowns) > 1.05
    assert len(set(varied.slowdowns)) == NUM_PLAYS
    assert max(varied.savings) < 1 / 3
    assert varied.saving == pytest.approx(sum(varied.savings) / NUM_PLAYS)


def test_a_group_whose_periods_are_alike_counts_beside_one_whose_periods_vary() -> None:
    others = [job("c", 50.0, 45.0)]
    plan = plan_sharing([*TWO, *others], ClusterRules(policy=Policy.SPREAD), recorded={JobId("a"): UNLIKE})
    assert sorted(len(placed.slowdowns) for placed in plan.jobs) == [1, NUM_PLAYS, NUM_PLAYS]
    assert len(plan.slowdowns) == NUM_PLAYS


SMALL_FIRST = [*(job(f"small-{number}", 100.0, 10.0) for number in range(3)),
               *(job(f"large-{number}", 100.0, 65.0) for number in range(3))]  # fmt: skip


@pytest.mark.parametrize("policy", [Policy.PACK, Policy.SPREAD])
def test_another_order_is_taken_where_it_needs_fewer_groups(policy: Policy) -> None:
    plan = plan_sharing(SMALL_FIRST, ClusterRules(policy=policy))
    assert len(plan.groups) == 3
    assert plan.num_orders > 1
    assert plan.without_place == ()
    within = plan_sharing(SMALL_FIRST, ClusterRules(policy=policy), max_groups=3)
    assert within.without_place == (), "no job is left out if another order has a place for it"


@pytest.mark.parametrize("seed", range(30))
def test_no_order_needs_fewer_groups_than_the_bound_and_few_of_them_fewer_than_the_plan(seed: int) -> None:
    rng = random.Random(seed)
    jobs = [job(str(number), 100.0, float(rng.randrange(5, 75))) for number in range(5)]
    rules = ClusterRules(policy=Policy.SPREAD)
    plan = plan_sharing(jobs, rules)
    best = len(jobs)
    for order in permutations(jobs):
        table = SharingTable(len(jobs), rules, Allowed(8, None, None))
        for each in order:
            table.place(each)
        best = min(best, len(table.jobs))
    assert plan.fewest_groups <= best <= len(plan.groups) <= best + 1
    assert plan.fewest_groups == fewest_groups(jobs, rules)
    assert sum(len(group.jobs) for group in plan.groups) == len(jobs)


def test_few_orders_of_many_jobs_are_tried_and_none_twice() -> None:
    assert len(list(orders(SMALL_FIRST))) <= MOST_ORDERS
    many = [job(str(number), 100.0 + number, 10.0) for number in range(1000)]
    assert 1 < len(list(orders(many))) <= 4
    assert len(list(orders([job("a", 100.0, 10.0)]))) == 1
