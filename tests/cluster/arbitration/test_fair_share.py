"""Tenants share the time of a group in proportion to their weights."""

from __future__ import annotations

import pytest

from tailrace.cluster.arbitration.fair_share import FairShare
from tailrace.cluster.ids import TenantId

A, B, C = TenantId("a"), TenantId("b"), TenantId("c")


def served(shares: FairShare, turns_s: dict[TenantId, float], num_turns: int) -> dict[TenantId, float]:
    """Let all tenants wait all the time; return the seconds of each."""
    seconds = dict.fromkeys(turns_s, 0.0)
    for _ in range(num_turns):
        tenant = shares.pick(turns_s)
        shares.begin(tenant, turns_s[tenant])
        seconds[tenant] += turns_s[tenant]
    return seconds


def test_backlogged_tenants_get_time_in_proportion_to_their_weights() -> None:
    seconds = served(FairShare({A: 2.0, B: 0.5}), {A: 10.0, B: 10.0, C: 10.0}, 700)
    assert seconds == {A: 4000.0, B: 1000.0, C: 2000.0}


def test_time_is_shared_and_not_the_number_of_turns() -> None:
    seconds = served(FairShare({}), {A: 10.0, B: 40.0}, 500)
    assert seconds[A] == seconds[B] == 4000.0


def test_equal_tags_go_by_the_order_of_waiting() -> None:
    assert FairShare({}).pick([B, A]) == B


def test_a_tenant_gets_no_credit_for_idling() -> None:
    shares = FairShare({})
    served(shares, {A: 10.0}, 100)
    shares.enter(B)
    seconds = served(shares, {A: 10.0, B: 10.0}, 20)
    assert abs(seconds[A] - seconds[B]) <= 20.0


def test_a_tenant_that_comes_back_keeps_what_it_owes() -> None:
    shares = FairShare({})
    for tenant in (A, B):
        shares.begin(tenant, 10.0)
    shares.charge(A, 90.0)
    shares.enter(A)
    assert [served(shares, {A: 10.0, B: 10.0}, 9)[A]] == [0.0], "B first catches up"


def test_a_turn_counts_when_it_begins_and_is_corrected_when_it_ends() -> None:
    shares = FairShare({})
    shares.begin(A, 10.0)
    assert shares.pick([A, B]) == B
    shares.begin(B, 11.0)
    assert shares.pick([A, B]) == A
    shares.charge(B, -2.0)
    assert shares.pick([A, B]) == B


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan")])
def test_a_weight_must_be_above_0(weight: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        FairShare({A: weight})
