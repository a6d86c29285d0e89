"""What a queue remembers of jobs and tenants, and what it forgets."""

from __future__ import annotations

import pytest

from cluster.arbitration.group_histories import LOAD, OFFLOAD, PREFETCH, SETUP, A, B, C, History, computing
from tailrace.cluster.ids import JobId, TenantId
from tailrace.cluster.job_spec import StateBytes
from tailrace.cluster.settings import ClusterRules

D = JobId("d")
PLAIN = ClusterRules(transfers=SETUP, prefetch=False)
AHEAD = ClusterRules(transfers=SETUP)


def test_a_phase_that_took_longer_than_estimated_is_expected_to_do_so_again_until_its_job_leaves() -> None:
    history = computing(PLAIN, A, (10.0,))
    history.ended(A, 40.0, seconds=40.0)
    history.ask(A, 50.0, (10.0,))
    assert history.waits(50.0) == {"job a: its operations on group g0": (50.0, 400.0)}
    history.leave(A, 60.0)
    history.ask(A, 70.0, (10.0,))
    history.moved(A, LOAD, 75.0)
    assert history.waits(75.0) == {"job a: its operations on group g0": (75.0, 100.0)}


def test_the_transfers_of_a_job_that_left_are_forgotten() -> None:
    history = History(PLAIN)
    history.ask(A, 0.0)
    history.moved(A, LOAD, 30.0, seconds=30.0)
    assert history.queue.costs.load_s(A, StateBytes()) == 30.0
    history.leave(A, 31.0)
    assert history.queue.costs.load_s(A, StateBytes()) == 5.0


def test_the_prefetch_of_a_job_that_left_is_forgotten() -> None:
    history = computing(AHEAD)
    history.ask(B, 1.0, (10.0,))
    history.moved(B, PREFETCH, 4.0, seconds=3.0)
    history.leave(B, 5.0)
    history.ask(B, 6.0, (10.0,))
    history.ask(C, 6.0, (9.0,))
    history.ended(A, 10.0)
    assert history.moved(A, OFFLOAD, 15.0) == ["load c"]


def test_a_lost_node_takes_prefetched_state_with_it() -> None:
    history = computing(AHEAD)
    history.ask(B, 1.0, (10.0,))
    history.moved(B, PREFETCH, 4.0, seconds=3.0)
    history.ask(C, 1.0, (9.0,))
    history.lose(5.0)
    assert history.restore(6.0) == ["load c"]


def test_nobody_makes_room_for_a_job_that_left() -> None:
    """B has the higher ratio, but only C is over before the next phase of D, as long as there is a D."""
    for leaves, expected in ((False, "load c"), (True, "load b")):
        history = computing(PLAIN)
        history.queue.expect({D: 38.0})
        history.ask(B, 1.0, (20.0,), slack_s=500.0)
        history.ask(C, 9.0, (15.0,), slack_s=500.0)
        if leaves:
            history.leave(D, 9.5)
        history.ended(A, 10.0)
        assert history.moved(A, OFFLOAD, 15.0) == [expected]


def test_the_job_to_prefetch_is_the_one_that_wins_when_the_lease_ends() -> None:
    """When A is granted, B's ratio is higher than C's. By the end of A's phase, C's is."""
    history = computing(AHEAD, B, (1.0,))
    history.ended(B, 1.0)
    history.ask(A, 2.0, (100.0,))
    history.moved(B, OFFLOAD, 2.0)
    history.ask(B, 3.0, (50.0,))
    history.ask(C, 10.0, (10.0,))
    assert history.moved(A, LOAD, 12.0) == ["grant a 1", "prefetch c"]


@pytest.mark.parametrize(("computed_s", "expected"), [(10.5, "load c"), (11.5, "load a")])
def test_tenants_pay_for_their_switches(computed_s: float, expected: str) -> None:
    """Tenant ta has used 15 s with its load, tb its seconds of computing, 2 s of offload and 2 s of load."""
    history = History(PLAIN)
    history.ask(A, -5.0, tenant="ta")
    history.moved(A, LOAD, 0.0)
    history.ask(B, 1.0, tenant="tb")
    history.ended(A, 10.0)
    history.moved(A, OFFLOAD, 12.0, seconds=2.0)
    history.moved(B, LOAD, 14.0, seconds=2.0)
    history.ask(A, 15.0, tenant="ta")
    history.ask(C, 15.0, tenant="tb")
    history.ended(B, 14.0 + computed_s, seconds=computed_s)
    assert history.moved(B, OFFLOAD, 30.0) == [expected]


def test_a_switch_is_paid_even_if_its_job_leaves() -> None:
    """Tenant ta has used 55 s, tb 100 s of a switch that it gave up."""
    history = History(PLAIN)
    history.ask(A, -5.0, (50.0,), tenant="ta")
    history.moved(A, LOAD, 0.0)
    history.ask(B, 1.0, tenant="tb")
    history.ended(A, 50.0, seconds=50.0)
    history.leave(B, 150.0)
    history.ask(C, 151.0, tenant="tb")
    history.ask(A, 152.0, tenant="ta")
    assert history.moved(A, OFFLOAD, 153.0) == ["load a"]


def test_a_tenant_gets_no_credit_for_the_time_before_its_first_request() -> None:
    history = computing(PLAIN)
    for turn in range(1, 20):
        history.ended(A, 10.0 * turn)
        history.ask(A, 10.0 * turn)
    history.ask(B, 191.0, tenant="u")
    history.ask(C, 192.0, tenant="u")
    history.ended(A, 200.0)
    history.moved(A, OFFLOAD, 201.0)
    assert history.moved(B, LOAD, 202.0) == ["grant b 1"], "the tenant of A has just had a turn"
    history.ask(A, 203.0)
    history.ended(B, 213.0)
    assert history.moved(B, OFFLOAD, 214.0) == ["load a"], "u has had its turn, and nothing more is due to it"


@pytest.mark.parametrize("asks_at", [83.0, 96.0])
def test_a_tenant_that_is_active_keeps_its_claim_when_another_of_its_jobs_asks(asks_at: float) -> None:
    """B's tenant has a tiny weight. It gets a turn because B is overdue, long before its time. The tenant t of A and D
    has waited meanwhile, or computes, so it comes before the tenant of C, which is new."""
    rules = ClusterRules(transfers=SETUP, prefetch=False, max_wait_s=50.0, tenants=((TenantId("u"), 0.001),))
    history = History(rules)
    history.ask(B, 2.0, tenant="u")
    history.moved(B, LOAD, 7.0)
    history.ask(A, 8.0)
    history.ended(B, 17.0)
    history.ask(B, 17.5, tenant="u")
    history.moved(B, OFFLOAD, 18.0)
    history.moved(A, LOAD, 19.0)
    history.ask(D, 70.0)
    history.ended(A, 80.0, seconds=61.0)
    history.moved(A, OFFLOAD, 81.0)
    assert history.moved(B, LOAD, 82.0) == ["grant b 1"], "overdue"
    if asks_at < 84.0:
        history.ask(A, asks_at)
    history.ask(C, 84.0, tenant="w")
    history.ended(B, 92.0)
    history.moved(B, OFFLOAD, 93.0)
    assert history.moved(D, LOAD, 94.0) == ["grant d 1"]
    if asks_at > 84.0:
        history.ask(A, asks_at)
    history.ended(D, 115.0, seconds=21.0)
    assert history.moved(D, OFFLOAD, 116.0) == ["load a"]
