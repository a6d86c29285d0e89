"""What the core relies on with every synchronization strategy, held to each one of the table on random fleets."""

from __future__ import annotations

from dataclasses import is_dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.histories import held_to
from policies.random_fleets import fleets, schedules, takers
from tailrace.core.fleet.policy import SynchronizationPolicy
from tailrace.policies.strategies import Routing, Synchronization

every_synchronization = pytest.mark.parametrize("synchronization", Synchronization)


def drawn(data: st.DataObject, synchronization: Synchronization) -> SynchronizationPolicy:
    """A policy of this strategy, with any routing that it may be asked to try out."""
    schedule = data.draw(schedules())
    routings = [routing.make(schedule) for routing in Routing]
    return synchronization.make(schedule, data.draw(st.sampled_from([r for r in routings if not r.needs_homes])))


@every_synchronization
@held_to(60)
@given(st.data())
def test_only_instances_that_are_behind_are_chosen_and_each_once(
    synchronization: Synchronization, data: st.DataObject
) -> None:
    """An instance that is called and has nothing to pull would take no work again."""
    seen = data.draw(fleets())
    chosen = list(drawn(data, synchronization).choose(seen))
    assert len(chosen) == len(set(chosen))
    assert set(chosen) <= {each.instance for each in seen.instances if each.version < seen.published}


@every_synchronization
@held_to(60)
@given(st.data())
def test_an_idle_fleet_that_may_take_nothing_pulls(synchronization: Synchronization, data: st.DataObject) -> None:
    """Else the run would stand still: nothing would happen after which the policy is asked again."""
    seen = data.draw(fleets(is_idle=True))
    is_behind = any(each.version < seen.published for each in seen.instances)
    if is_behind and not any(takers(seen, group) for group in seen.queue):
        assert list(drawn(data, synchronization).choose(seen))


@every_synchronization
@held_to(40)
@given(st.data())
def test_a_policy_is_a_function_of_its_view_and_changes_nothing(
    synchronization: Synchronization, data: st.DataObject
) -> None:
    policy, seen = drawn(data, synchronization), data.draw(fleets())
    free = list(seen.admission.free or ())
    assert list(policy.choose(seen)) == list(policy.choose(seen))
    assert list(seen.admission.free or ()) == free, "the plan changed what it was made from"
    assert is_dataclass(policy)
    assert policy.__dataclass_params__.frozen
