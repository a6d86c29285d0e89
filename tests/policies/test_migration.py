"""When work moves between instances, on views alone."""

from __future__ import annotations

from policies.fleets import begun, instance, view
from tailrace.core.fleet.policy import InstanceView
from tailrace.policies.migration.never import Never
from tailrace.policies.migration.rebalance import Rebalance
from tailrace.policies.routing.waterfall import Waterfall

POLICY = Rebalance()


def moves(*instances: InstanceView) -> list[tuple[int, int]]:
    return POLICY.choose(view(instances, []))


def test_vanilla_moves_nothing() -> None:
    assert Never().choose(view([instance(0, responses=99, num_waiting=50), instance(1)], [])) == []


def test_responses_beyond_a_few_that_wait_inside_an_instance_are_taken_back() -> None:
    assert moves(instance(0, responses=20, num_waiting=3), instance(1, responses=20, num_waiting=8)) == [(1, 5)]


def test_an_instance_that_is_much_faster_than_another_keeps_an_even_share() -> None:
    assert moves(instance(0, responses=60), instance(1, responses=2)) == [(0, 29)]
    assert moves(instance(0, responses=60), instance(1, responses=20)) == [], "the gap is small"


def test_an_idle_instance_counts_if_it_may_take_the_work() -> None:
    assert moves(instance(0, version=2, responses=60), instance(1, version=2)) == [(0, 30)]
    assert moves(instance(0, version=2, responses=60), instance(1, version=1)) == []


def test_a_move_that_would_gain_little_is_not_made() -> None:
    """Few responses take no longer together than apart: the weights are read once for all of them."""
    assert moves(instance(0, responses=6), instance(1)) == []


def test_an_instance_that_gave_work_away_is_left_alone_for_a_while() -> None:
    assert moves(instance(0, responses=60, is_rested=False), instance(1)) == []


def test_the_fastest_that_has_somebody_to_give_to_gives() -> None:
    found = moves(instance(0, version=3, responses=90), instance(1, version=1, responses=60), instance(2, version=2))
    assert found == [(1, 30)]


def test_what_an_instance_that_is_behind_gives_away_does_not_go_back_to_it() -> None:
    assert moves(instance(0, version=2, responses=60), instance(1, version=3)) == [(0, 30)]
    given = [begun(i, version=1, needs=2) for i in range(30)]
    routes = Waterfall().route(view([instance(0, version=2, responses=30), instance(1, version=3)], given))
    assert {number for route in routes for number in route.instances} == {1}
