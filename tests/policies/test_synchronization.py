"""When instances pull, on views alone."""

from __future__ import annotations

from policies.fleets import begun, instance, new, view
from tailrace.core.fleet.policy import FleetView
from tailrace.policies.routing.least_loaded import LeastLoaded
from tailrace.policies.routing.waterfall import Waterfall
from tailrace.policies.synchronization.as_published import AsPublished
from tailrace.policies.synchronization.when_useful import WhenUseful

POLICY = WhenUseful(routing=Waterfall())


def test_vanilla_calls_whoever_is_behind() -> None:
    fleet = view([instance(0, version=2, responses=5), instance(1, version=3), instance(2, version=1)], [], published=3)
    assert AsPublished().choose(fleet) == [0, 2]


def test_nobody_who_works_pulls_while_nothing_waits() -> None:
    assert POLICY.choose(view([instance(0, version=1, responses=1)], [], published=3)) == []


def test_an_idle_instance_pulls_whatever_waits_for_it_has_nothing_to_lose() -> None:
    fleet = view([instance(0, version=1), instance(1, version=3), instance(2, version=2, responses=9)], [], published=3)
    assert POLICY.choose(fleet) == [0]


def test_an_instance_pulls_if_a_newer_one_is_so_much_faster_that_work_should_move_to_it() -> None:
    """Two responses make 100 tokens a second, eleven 524."""
    fleet = view([instance(0, version=1, responses=2), instance(1, version=2, responses=11)], [], published=3)
    assert POLICY.choose(fleet) == [0]
    assert WhenUseful(routing=Waterfall(), max_gap=5.5).choose(fleet) == [], "not more than that"
    same = view([instance(0, version=1, responses=2), instance(1, version=1, responses=11)], [], published=3)
    assert POLICY.choose(same) == [], "work may move from there as it is"


def test_an_instance_that_holds_more_than_it_can_run_pulls_so_that_the_rest_may_go_elsewhere() -> None:
    full, busy = instance(0, version=2, responses=9, num_waiting=1), instance(1, version=2, responses=9)
    assert POLICY.choose(view([full, busy], [], published=3)) == [0]
    assert POLICY.choose(view([full, busy], [], published=2)) == [], "it has the newest version"


def test_an_instance_that_may_take_what_waits_does_not_pull() -> None:
    fleet = view([instance(0, version=1, responses=90)], [begun(0, version=1)], published=3)
    assert POLICY.choose(fleet) == []


def test_an_instance_pulls_if_that_lets_new_work_in() -> None:
    """Version 0 may begin nothing that is trained at 3 with a bound of 2; version 3 may."""
    fleet = view([instance(0, version=0, responses=3)], [new(0)], published=3, current=3, running=three_running(0))
    assert POLICY.choose(fleet) == [0]


def three_running(number: int, length: int = 10) -> dict[int, list]:
    return {number: [begun(90 + i, version=0, length=length) for i in range(3)]}


def test_it_does_not_if_its_own_work_would_fill_it_again() -> None:
    crowded = WhenUseful(routing=Waterfall(max_running=3))
    fleet = view([instance(0, version=0, responses=3)], [new(0)], published=3, current=3, running=three_running(0))
    assert crowded.choose(fleet) == []


def test_it_does_not_if_the_new_version_may_begin_nothing_either() -> None:
    fleet = view([instance(0, version=0, responses=1)], [new(0)], published=3, free=0)
    assert POLICY.choose(fleet) == []


def test_a_few_waiting_responses_do_not_make_everyone_pull() -> None:
    narrow = WhenUseful(routing=Waterfall(max_running=2))
    busy = [instance(i, version=0, responses=1) for i in range(5)]
    running = {i: [begun(90 + i, version=0)] for i in range(5)}
    fleet = view(busy, [new(0), new(1), new(2)], published=3, current=3, running=running)
    assert narrow.choose(fleet) == [0, 1, 2], "each has room for one beside its own, which goes back to it"


def test_no_more_than_so_many_are_judged_in_one_plan() -> None:
    busy = [instance(i, version=0, responses=1) for i in range(5)]
    running = {i: [begun(90 + i, version=0)] for i in range(5)}
    fleet = view(busy, [new(i) for i in range(9)], published=3, current=3, running=running)
    assert WhenUseful(routing=Waterfall(max_running=2)).choose(fleet) == [0, 1, 2, 3, 4]
    assert WhenUseful(routing=Waterfall(max_running=2), max_trials=2).choose(fleet) == [0, 1]


def test_those_with_the_least_to_lose_pull_first() -> None:
    narrow = WhenUseful(routing=Waterfall(max_running=4))
    fleet = view(
        [instance(0, version=0, responses=3), instance(1, version=0, responses=1), instance(2, version=0, responses=3)],
        [new(0), new(1)],
        published=3,
        current=3,
        running=three_running(0) | {1: [begun(80, version=0)]} | three_running(2),
    )
    assert narrow.choose(fleet) == [1]


def test_what_can_be_routed_as_things_are_makes_nobody_pull() -> None:
    working = [instance(0, version=0, responses=1), instance(1, version=3)]
    assert POLICY.choose(view(working, [new(0), new(1)], published=3, current=3)) == []


def test_a_response_nobody_may_go_on_with_is_pulled_for_at_once() -> None:
    """The instance that had version 3 is lost; the other has work it could take meanwhile."""
    fleet = stranded(newest=1)
    assert POLICY.choose(fleet) == [0]
    assert POLICY.choose(stranded(newest=4)) == [], "one is on its way already"


def stranded(newest: int) -> FleetView:
    queue = [begun(0, version=1, needs=3), begun(1, version=1)]
    return view([instance(0, version=1, responses=90)], queue, published=4, newest=newest)


def test_whoever_is_behind_helps_with_an_evaluation() -> None:
    policy = WhenUseful(routing=LeastLoaded())
    queue = [begun(i, version=3, exact=True) for i in range(4)] + [begun(9, version=1)]
    fleet = view(
        [
            instance(0, version=3, capacity=1),
            instance(1, version=1, capacity=2, responses=1),
            instance(2, version=1, capacity=2, responses=1),
        ],
        queue,
        published=3,
        running={1: [begun(81, version=1)], 2: [begun(82, version=1)]},
    )
    assert policy.choose(fleet) == [1, 2]


def test_a_choice_is_repeatable_and_leaves_the_view_alone() -> None:
    busy = [instance(i, version=0, responses=1) for i in range(3)]
    running = {i: [begun(90 + i, version=0)] for i in range(3)}
    fleet = view(busy, [new(0), new(1)], published=3, current=3, running=running)
    free = list(fleet.admission.free or ())
    assert POLICY.choose(fleet) == POLICY.choose(fleet) == [0]
    assert fleet.admission.free == free
