"""An instance whose parallel size is not used is not idle: it is not there, until its size is used again."""

from __future__ import annotations

import pytest
from hypothesis import given

from core.histories import Case, cases, held_to
from core.test_resizing import Rising, resizing, sizes
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.fleet.instance import InstancePhase
from tailrace.core.ids import InstanceId
from tailrace.observe.shared_fold.run_fold import RunFold
from tailrace.observe.time_use.timeline import LENT, Timeline

OFF_DEVICES = (InstancePhase.RELEASED, InstancePhase.ABSENT)


def rising(*, parks: bool) -> Rising:
    """A run of one device pair that goes to size 2 and back."""
    given = {"batch_size": 2, "max_steps": 12, "save_interval": None, "max_in_flight": 8}
    world = Rising(**{**given, **sizes(1, 2, devices=2, parks=parks, quiet_rounds=2)})
    world.tell(ev.RunStarted(schedule=world.schedule))
    return world


@pytest.mark.parametrize("parks", [False, True])
def test_the_number_of_instances_is_that_of_the_size_in_use(parks: bool) -> None:
    world, fold, seen = rising(parks=parks), RunFold(), set()
    while world.verdict is None:
        world.advance()
        for entry in world.entries:
            fold.follow(entry)
        world.entries.clear()
        rooms = world.coordinator.rooms
        parked = {each.id for each in rooms.fleet.instances.values() if each.is_parked and each.phase in OFF_DEVICES}
        known = fold.state.instances
        assert {number for number, instance in known.items() if instance.is_gone} == parked & known.keys()
        if not rooms.fleet.sizes.is_changing and InstanceId(2) in known:
            count = fold.num_in_fleet(world.schedule)
            assert count == 2 // rooms.fleet.parallel_size
            seen.add(count)
    assert seen == {1, 2}


@held_to(15)
@given(cases(resizing, 0.0, 0.03))
def test_in_any_history_those_that_are_gone_hold_no_memory(case: Case) -> None:
    fold, world = RunFold(), case.run().world
    for entry in world.entries:
        fold.follow(entry)
    for number, instance in world.coordinator.rooms.fleet.instances.items():
        if fold.instance(number).is_gone:
            assert instance.is_parked
            assert instance.phase in OFF_DEVICES


@pytest.mark.parametrize("parks", [False, True])
def test_the_lane_of_a_parked_instance_ends_and_goes_on_when_it_comes_back(parks: bool) -> None:
    world, timeline = rising(parks=parks), Timeline()
    while world.verdict is None:
        world.advance()
    for entry in world.entries:
        timeline.feed(entry)
    lanes = {lane.name: lane for lane in timeline.lanes()}
    opened = [c.parallel_size for entry in world.entries for c in entry.commands if isinstance(c, do.OpenRound)]
    assert opened[-1] == 1
    assert lanes["instance 2"].end < timeline.lanes()[-1].end, "its size is no longer used"
    assert "down" in {span.kind for span in lanes["instance 0"].spans}, "it was away for some rounds"
    assert not {span.kind for lane in lanes.values() for span in lane.spans} & {LENT}
