"""Instances behind a network that repeats, delays and makes up messages: nothing is lost, cut or trained twice."""

from __future__ import annotations

import random

from hypothesis import given

from core.histories import (
    NUM_PROMPTS,
    Case,
    History,
    active_partial,
    any_schedule,
    cases,
    coordinated,
    held_to,
    one_schedule,
)
from core.network_world import NetworkWorld
from core.test_any_schedule import check_end


def run(case: Case, noise: float = 0.3) -> NetworkWorld:
    rng = random.Random(case.seed)
    with NetworkWorld(case.schedule, rng, num_prompts=NUM_PROMPTS, noise=noise, trouble=case.trouble) as world:
        check_end(History(schedule=case.schedule, world=world, verdict=world.run()))
    return world


@held_to(30)
@given(cases(one_schedule, 0.0, 0.05))
def test_any_sound_schedule_trains_whole_responses_once_whatever_the_network_does(case: Case) -> None:
    run(case)


@held_to(10)
@given(cases(coordinated, 0.0, 0.05))
def test_responses_that_move_between_instances_stay_whole_whatever_the_network_does(case: Case) -> None:
    run(case)


@held_to(10)
@given(cases(active_partial, 0.0, 0.05))
def test_responses_that_go_on_in_later_rounds_stay_whole_whatever_the_network_does(case: Case) -> None:
    run(case)


def test_the_network_does_all_that_it_may_do() -> None:
    rng = random.Random(1)
    seen = {kind for seed in range(8) for kind in run(Case(schedule=any_schedule(rng), seed=seed, trouble=0.1)).num}
    assert seen == {"repeated", "foreign", "overtaking", "unheard"}
