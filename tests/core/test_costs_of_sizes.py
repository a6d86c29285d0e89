"""What a parallel size costs: what was measured of it, else what its profile says, else what the nearest size costs."""

from __future__ import annotations

from dataclasses import replace

from tailrace.core.costs import NOTHING_KNOWN, CostModel
from tailrace.core.fleet.resizing import costs_of
from tailrace.core.rooms import Rooms
from tailrace.core.schedule import Layout, Parallelism, Schedule
from tailrace.core.schedule.parallelism import layouts_by_order
from tailrace.policies.strategies import policies_of

MEASURED, PROFILED = (CostModel(k1=0.0, k2=0.0, k3=0.0, k4=each) for each in (0.1, 0.2))


def rooms(**of_size_4: CostModel) -> Rooms:
    layouts = [replace(each, **of_size_4) if each.size == 4 else each for each in layouts_by_order(8, (1, 2, 4, 8), 1)]
    schedule = Schedule(
        train_source="train", batch_size=4, group_size=2, max_steps=9, num_instances=8, parallelism=_of(layouts)
    )
    return Rooms(schedule, policies_of(schedule))


def _of(layouts: list[Layout]) -> Parallelism:
    return Parallelism(layouts=tuple(layouts))


def test_a_size_of_which_nothing_is_known_costs_what_the_nearest_measured_one_does() -> None:
    made = rooms()
    assert costs_of(made, 4) == NOTHING_KNOWN
    made.fleet.sizes.measured = {1: MEASURED, 8: PROFILED}
    assert [costs_of(made, size) for size in (1, 2, 4, 8)] == [MEASURED, MEASURED, PROFILED, PROFILED]


def test_a_profile_counts_until_its_own_size_is_measured() -> None:
    made = rooms(costs=PROFILED)
    made.fleet.sizes.measured = {1: MEASURED}
    assert costs_of(made, 4) == PROFILED
    made.fleet.sizes.measured[4] = MEASURED
    assert costs_of(made, 4) == MEASURED
