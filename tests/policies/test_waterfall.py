"""The throughput-oriented router, on views alone."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from core.test_schedule import schedule
from policies.fleets import COSTS, begun, instance, new, view
from tailrace.core.costs import CostModel
from tailrace.core.fleet.policy import FleetView, WaitingGroup
from tailrace.core.schedule import Coordination, Leftovers
from tailrace.policies.routing.waterfall import Waterfall
from tailrace.policies.strategies import policies_of

POLICY = Waterfall(kv_budget=10_000)


def routed(seen: FleetView, policy: Waterfall = POLICY) -> list[tuple[int, int]]:
    """(prompt, instance) of every response that goes somewhere, in order."""
    return [(route.group.prompt, number) for route in policy.route(seen) for number in route.instances]


def test_a_response_goes_where_it_adds_most() -> None:
    fleet = view([instance(0, responses=9), instance(1, responses=3), instance(2, responses=5)], [new(0)])
    assert routed(fleet) == [(0, 1)]


def test_members_of_a_group_spread_out_and_ties_go_to_the_lower_number() -> None:
    fleet = view([instance(0), instance(1)], [new(0, members=4)])
    assert routed(fleet) == [(0, 0), (0, 1), (0, 0), (0, 1)]


def test_the_oldest_version_comes_first_as_long_as_its_gain_is_enough() -> None:
    fleet = view([instance(0, version=1, responses=4), instance(1, version=2)], [new(0)], current=2)
    assert routed(fleet) == [(0, 0)]
    crowded = view([instance(0, version=1, responses=80), instance(1, version=2)], [new(0)], current=2)
    assert routed(crowded) == [(0, 1)]


def test_what_was_begun_goes_where_it_gains_most_of_all_versions() -> None:
    """Else what is taken from a loaded instance that is behind would go back to it, beside idle ones that are newer."""
    fleet = view([instance(0, version=1, responses=4, kv=8000.0), instance(1, version=2)], [begun(0, version=1)])
    assert routed(fleet) == [(0, 1)]
    alike = view([instance(0, version=1), instance(1, version=2)], [begun(0, version=1)])
    assert routed(alike) == [(0, 0)], "of two that gain the same the older, which has fewer uses"


def test_a_version_with_more_gain_but_no_room_is_passed_over() -> None:
    full = instance(1, version=2, responses=2, kv=9_900.0)
    fleet = view([instance(0, version=1, responses=9), full], [begun(0, version=1, length=600)])
    assert routed(fleet) == [(0, 0)]


def test_what_gains_too_little_everywhere_waits() -> None:
    fleet = view([instance(0, responses=80), instance(1, responses=90)], [new(0)])
    assert routed(fleet) == []
    eager = Waterfall(kv_budget=10_000, min_gain=0.001)
    assert routed(fleet, eager) == [(0, 0)]


def test_a_gain_that_is_only_guessed_lets_nothing_wait() -> None:
    """These costs were measured on an H200 with one or two responses at a time. Believed for more, they would keep it
    so: a second response seems to bring nothing, and more would never be seen."""
    costs = CostModel(k1=0.0, k2=0.0, k3=4.9e-4, k4=4.9e-4)
    queue = [new(number, members=8) for number in range(4)]
    assert len(routed(view([instance(0), instance(1)], queue, costs=costs))) == 4
    known = replace(costs, most_running=2)
    assert len(routed(view([instance(0), instance(1)], queue, costs=known))) == 32
    full = view([instance(0, responses=4, kv=9_995.0)], queue, costs=known)
    assert routed(full) == [], "without room in the KV cache all the same"


def test_a_single_instance_gets_everything_it_has_room_for() -> None:
    given = {"leftovers": Leftovers.KEEP, "max_staleness": 1}
    steered = schedule(**given, coordination=Coordination(routing="throughput"))
    alone, fleet = (policies_of(replace(steered, num_instances=number)).routing for number in (1, 2))
    crowded = view([instance(0, responses=80)], [new(0)])
    assert list(alone.route(crowded))
    assert not list(fleet.route(crowded)), "another instance may have more to gain soon"


@pytest.mark.parametrize(
    "full",
    [
        {"responses": 4, "kv": 9_500.0},
        {"responses": 4, "kv": 10.0, "num_waiting": 1},
        {"responses": 4, "kv": 10.0, "capacity": 4},
    ],
)
def test_where_it_would_queue_it_gains_nothing(full: dict[str, float]) -> None:
    assert routed(view([instance(0, **full)], [new(0, length=600)])) == []
    assert routed(view([instance(0, **full), instance(1, responses=9)], [new(0, length=600)])) == [(0, 1)]


def test_an_idle_instance_takes_whatever_it_may() -> None:
    fleet = view([instance(0)], [begun(0, version=0, length=20_000)])
    assert routed(fleet) == [(0, 0)]


def test_a_response_is_continued_by_a_version_that_is_not_older_than_its_tokens() -> None:
    fleet = view([instance(0, version=2), instance(1, version=4, responses=8)], [begun(0, version=1, needs=3)])
    assert routed(fleet) == [(0, 1)]


def test_a_response_that_waits_closes_the_instances_that_could_take_it_and_no_others() -> None:
    queue = [begun(0, version=3), new(1)]
    crowded = [instance(0, version=3, responses=90), instance(1, version=4, responses=90)]
    assert routed(view([*crowded, instance(2, version=2)], queue, current=4)) == [(1, 2)]
    assert routed(view(crowded, queue, current=4), Waterfall(min_gain=0.9)) == []


def test_what_is_stalest_has_the_first_claim() -> None:
    fleet = view([instance(0, capacity=1)], [begun(0, version=0), new(1)])
    assert routed(fleet) == [(0, 0)]


def test_an_evaluation_goes_to_its_version_only() -> None:
    fleet = view([instance(0, version=1), instance(1, version=3)], [begun(0, version=1, exact=True)])
    assert routed(fleet) == [(0, 0)]
    assert routed(view([instance(1, version=3)], [begun(0, version=1, exact=True)])) == []


def test_each_admission_counts_before_the_next_and_none_leaks_out() -> None:
    fleet = view([instance(0), instance(1)], [new(0, members=2), new(1), new(2)], free=2)
    assert routed(fleet) == [(0, 0), (0, 1), (1, 0)]
    assert fleet.admission.free == [2]
    assert routed(fleet) == [(0, 0), (0, 1), (1, 0)]


def test_the_others_of_a_group_go_to_no_older_version_than_its_first() -> None:
    fleet = view(
        [instance(0, version=1, capacity=1), instance(1, version=0, capacity=0), instance(2, version=2)],
        [new(0, members=2)],
        current=2,
    )
    assert routed(fleet) == [(0, 0), (0, 2)]


def test_choices_are_nearly_those_of_trying_every_instance() -> None:
    """Instances are ranked by what a new response gains; the plain search, by what each response does."""
    rng = random.Random(3)
    instances = [instance(i, responses=rng.randrange(20), kv=rng.randrange(5000)) for i in range(12)]
    queue = [begun(i, version=0, length=rng.randrange(1, 900)) for i in range(60)]
    found, plain = routed(view(instances, queue)), searched(instances, queue)
    assert len(found) >= 0.95 * len(plain)
    for i in range(12):
        assert abs(sum(to == i for _, to in found) - sum(to == i for _, to in plain)) <= 2


def searched(instances: list, queue: list[WaitingGroup]) -> list[tuple[int, int]]:
    load = {i.instance: (i.num_responses, i.kv_tokens) for i in instances}
    found = []
    for group in queue:
        for _, length, _ in group.members:
            gains = {
                i: COSTS.gain(length=length, num_running=n, kv_tokens=kv, kv_budget=10_000)
                for i, (n, kv) in load.items()
            }
            best = max(gains, key=lambda i: (gains[i], -load[i][0], -i))
            if gains[best] < 0.3 * COSTS.ideal_gain(length=length):
                return found
            load[best] = (load[best][0] + 1, load[best][1] + length)
            found.append((group.group.prompt, best))
    return found
