"""What must hold in the fleet room after every event."""

from __future__ import annotations

from tailrace.core.fleet.instance import InstancePhase
from tailrace.core.responses.response import ResponsePhase
from tailrace.core.rooms import Rooms


def check(rooms: Rooms) -> None:
    responses, instances = rooms.responses, rooms.fleet.instances
    running = {r: i.id for i in instances.values() for r in i.running}
    members = {r.id: r for r in responses.all_responses()}
    surplus = rooms.collection.surplus_ids()
    assert set(running) - surplus == {r.id for r in members.values() if r.phase is ResponsePhase.RUNNING}
    assert all(members[r].instance == instance for r, instance in running.items() if r not in surplus)
    aborting = {r for i in instances.values() for r in i.aborting}
    assert not aborting & set(members), "an aborted response is still here"
    newest = rooms.training.newest_pullable
    for instance in instances.values():
        instance.check()
        if not surplus:
            assert instance.num_tokens == sum(members[r].length for r in instance.running)
        assert instance.phase is InstancePhase.ABSENT or instance.version <= newest
    fleet, published = rooms.fleet, rooms.training.published
    assert (fleet.empty_since is None) == bool(instances)
    assert fleet.num_absent == sum(i.phase is InstancePhase.ABSENT for i in instances.values())
    assert fleet.num_retiring == sum(i.is_retiring for i in instances.values())
    if fleet.all_hold == published:
        present = [each for each in instances.values() if not each.is_parked]
        assert all(i.version >= published and i.phase is not InstancePhase.RELEASED for i in present)
    for group in responses.all_groups():
        for response in group.members.values():
            if response.instance is not None and group.version is not None:
                assert instances[response.instance].version >= group.version
    _check_lent(rooms)
    _check_layouts(rooms)


def _check_lent(rooms: Rooms) -> None:
    """Lent instances get no work, and there are some exactly as long as something is lent."""
    fleet = rooms.fleet
    for instance in fleet.instances.values():
        assert fleet.has_lent or not instance.is_lent
        assert not instance.is_lent or instance.running.keys() == instance.stopping.keys()
    assert not fleet.has_lent or rooms.collection.progress is not None or rooms.training.num_batches


def _check_layouts(rooms: Rooms) -> None:
    """Instances of two layouts are never on the devices at the same time, unless those of one are leaving."""
    known, sizes = rooms.schedule.parallelism, rooms.fleet.sizes
    layout = known.layout(sizes.current)
    assert (layout is not None) == bool(known.layouts)
    for instance in rooms.fleet.instances.values():
        other = known.layout_of(instance.id)
        is_used = other is None or other is layout
        assert not (instance.is_parked and is_used) or sizes.is_changing
        away = (InstancePhase.RELEASED, InstancePhase.ABSENT)
        assert is_used or sizes.is_changing or (instance.is_parked and instance.phase in away)
