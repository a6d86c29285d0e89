"""What the core relies on with every migration strategy, held to each one of the table on random fleets."""

from __future__ import annotations

from dataclasses import is_dataclass

import pytest
from hypothesis import given

from core.histories import held_to
from policies.random_fleets import fleets, schedules
from tailrace.policies.strategies import Migration

every_migration = pytest.mark.parametrize("migration", Migration)


@every_migration
@held_to(60)
@given(schedule=schedules(), seen=fleets())
def test_an_instance_gives_away_no_more_than_it_has(migration: Migration, schedule: object, seen: object) -> None:
    moves = list(migration.make(schedule).choose(seen))
    held = {each.instance: each.num_responses for each in seen.instances}
    assert len(moves) == len({number for number, _ in moves}), "an instance is named twice"
    assert all(1 <= count <= held[number] for number, count in moves)


@every_migration
@held_to(40)
@given(schedule=schedules(), seen=fleets())
def test_a_policy_that_moves_something_is_planned(migration: Migration, schedule: object, seen: object) -> None:
    """The core never asks the others."""
    policy = migration.make(schedule)
    assert policy.is_planned or list(policy.choose(seen)) == []


@every_migration
@held_to(40)
@given(schedule=schedules(), seen=fleets())
def test_a_policy_is_a_function_of_its_view_and_changes_nothing(
    migration: Migration, schedule: object, seen: object
) -> None:
    policy, free = migration.make(schedule), list(seen.admission.free or ())
    assert list(policy.choose(seen)) == list(policy.choose(seen))
    assert list(seen.admission.free or ()) == free, "the plan changed what it was made from"
    assert is_dataclass(policy)
    assert policy.__dataclass_params__.frozen
