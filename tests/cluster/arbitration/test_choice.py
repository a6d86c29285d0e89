"""Who is next: the overdue, then the tenant's turn, then what delays nobody, then the ratio."""

from __future__ import annotations

from tailrace.cluster.arbitration.choice import choose
from tailrace.cluster.arbitration.fair_share import FairShare
from tailrace.cluster.arbitration.ratios import WaitingPhase
from tailrace.cluster.arbitration.requests import PhaseRequest
from tailrace.cluster.ids import JobId, TenantId
from tailrace.cluster.settings import ClusterRules, Ratio

NOW = 1000.0
RULES = ClusterRules(max_wait_s=100.0)


def candidate(job: str, waited_s: float, total_s: float, *, slack_s: float = 0.0, tenant: str = "t") -> WaitingPhase:
    request = PhaseRequest(
        job=JobId(job),
        tenant=TenantId(tenant),
        asked_at=NOW - waited_s,
        operations_s=(total_s,),
        slack_s=slack_s,
    )
    return WaitingPhase(request=request, execution_s=total_s, setup_s=0.0, needs_switch=False)


def chosen(
    *candidates: WaitingPhase,
    shares: FairShare | None = None,
    starts: dict[str, float] | None = None,
    rules: ClusterRules = RULES,
) -> str | None:
    found = choose(
        candidates,
        shares=FairShare({}) if shares is None else shares,
        latest_starts={JobId(job): at for job, at in (starts or {}).items()},
        rules=rules,
        now=NOW,
    )
    return None if found is None else found.request.job


def test_nobody_waits_and_nobody_is_chosen() -> None:
    assert chosen() is None


def test_overdue_requests_come_first_in_order_of_arrival_whatever_their_ratio_and_tenant() -> None:
    shares = FairShare({})
    shares.charge(TenantId("u"), 1e6)
    short = candidate("s", 99.0, 1.0)
    late, later = candidate("l", 101.0, 1e6, tenant="u"), candidate("m", 102.0, 1e6)
    assert chosen(short, late, shares=shares) == "l"
    assert chosen(short, late, later, shares=shares) == "m"
    assert chosen(short, candidate("l", 100.0, 1e6), shares=shares) == "s", "exactly the limit is not overdue"


def test_fair_share_picks_the_tenant_and_the_ratio_only_orders_its_requests() -> None:
    shares = FairShare({})
    shares.charge(TenantId("u"), 1.0)
    best_of_u = candidate("u1", 90.0, 1.0, tenant="u")
    assert chosen(best_of_u, candidate("t1", 1.0, 50.0), candidate("t2", 2.0, 50.0), shares=shares) == "t2"


def test_a_run_that_is_over_before_another_job_must_start_comes_first() -> None:
    long, short = candidate("l", 90.0, 60.0), candidate("s", 1.0, 30.0, slack_s=200.0)
    assert chosen(long, short) == "l"
    assert chosen(long, candidate("s", 1.0, 30.0), starts={"r": NOW + 40.0}) == "l", "l itself must start: all delay"
    pair = candidate("l", 90.0, 60.0, slack_s=500.0), short
    assert chosen(*pair) == "l"
    assert chosen(*pair, starts={"r": NOW + 40.0}) == "s"
    assert chosen(*pair, starts={"r": NOW + 60.0}) == "l"
    assert chosen(*pair, starts={"r": NOW + 10.0}) == "l", "neither is over in time"


def test_a_waiting_jobs_own_slack_counts_and_not_what_was_predicted_for_it() -> None:
    pair = candidate("l", 90.0, 60.0, slack_s=500.0), candidate("s", 1.0, 30.0, slack_s=200.0)
    assert chosen(*pair, starts={"l": NOW - 5.0, "s": NOW + 40.0}) == "l"


def test_first_come_first_served_looks_at_nothing_else() -> None:
    rules = ClusterRules(ratio=Ratio.FIRST_COME)
    pair = candidate("l", 90.0, 60.0, slack_s=500.0), candidate("s", 1.0, 30.0, slack_s=200.0)
    assert chosen(*pair, starts={"r": NOW + 40.0}, rules=rules) == "l"


def test_a_request_that_must_start_now_goes_before_one_that_can_wait_whatever_their_ratios() -> None:
    must_start, can_wait = candidate("m", 1.0, 60.0), candidate("w", 90.0, 5.0, slack_s=300.0)
    assert chosen(must_start, can_wait) == "m"
