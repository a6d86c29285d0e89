"""The vanilla router, on views alone."""

from __future__ import annotations

import pytest

from policies.fleets import begun, instance, new, view
from tailrace.policies.routing.least_loaded import LeastLoaded


def routed(seen: object) -> dict[int, list[int]]:
    """Prompt by prompt, the instances its members went to."""
    found: dict[int, list[int]] = {}
    for route in LeastLoaded().route(seen):  # type: ignore[arg-type]
        found.setdefault(route.group.prompt, []).extend(route.instances)
    return found


@pytest.mark.parametrize(
    ("loads", "chosen"), [((3, 1, 2), 1), ((2, 2, 2), 0), ((8, 7, 9), 1), ((8, 8), None), ((), None)]
)
def test_the_least_loaded_instance_with_room_is_chosen_and_ties_go_to_the_lower_number(
    loads: tuple[int, ...], chosen: int | None
) -> None:
    fleet = view([instance(i, responses=n, capacity=8) for i, n in enumerate(loads)], [new(0)])
    assert routed(fleet) == ({} if chosen is None else {0: [chosen]})


def test_the_members_of_a_group_are_spread_and_each_counts_before_the_next() -> None:
    fleet = view([instance(0, responses=1), instance(1)], [new(0, members=3), new(1), new(2)])
    assert routed(fleet) == {0: [1, 0, 1], 1: [0], 2: [1]}


def test_members_without_room_wait_while_the_others_begin() -> None:
    fleet = view([instance(0, responses=7, capacity=8), instance(1, responses=6, capacity=8)], [new(0, members=4)])
    assert routed(fleet) == {0: [1, 0, 1]}


def test_once_a_group_has_begun_its_other_members_go_to_no_older_version() -> None:
    fleet = view([instance(0, version=2), instance(1, version=1, responses=1)], [new(0, members=3)])
    assert routed(fleet) == {0: [0, 0, 0]}


def test_a_response_is_continued_by_a_version_that_is_not_older_than_its_tokens() -> None:
    fleet = view([instance(0, version=2), instance(1, version=4, responses=3)], [begun(0, version=1, needs=3)])
    assert routed(fleet) == {0: [1]}


def test_what_is_new_waits_in_order_and_what_was_begun_does_not_hold_the_others_up() -> None:
    fleet = view([instance(0, version=2)], [begun(0, version=3), begun(1, version=1), new(2)])
    assert routed(fleet) == {1: [0], 2: [0]}


def test_each_admission_counts_before_the_next() -> None:
    fleet = view([instance(0), instance(1)], [new(0), new(1), new(2)], free=2)
    assert routed(fleet) == {0: [0], 1: [1]}
    assert fleet.admission.free == [2], "the plan has changed what it was made from"
