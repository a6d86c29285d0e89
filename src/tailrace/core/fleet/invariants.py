"""What must hold in the fleet room after every event."""

from __future__ import annotations

from tailrace.core.fleet.instance import InstancePhase
from tailrace.core.responses.trajectory import TrajectoryPhase
from tailrace.core.rooms import Rooms


def check(rooms: Rooms) -> None:
    responses, instances = rooms.responses, rooms.fleet.instances
    running = {t: i.id for i in instances.values() for t in i.running}
    trajectories = {t.id: t for t in responses.trajectories()}
    surplus = rooms.collection.surplus_ids()
    assert set(running) - surplus == {t.id for t in trajectories.values() if t.phase is TrajectoryPhase.RUNNING}
    assert all(trajectories[t].instance == instance for t, instance in running.items() if t not in surplus)
    aborting = {t for i in instances.values() for t in i.aborting}
    assert not aborting & set(trajectories), "an aborted response is still here"
    newest = rooms.training.newest_pullable
    for instance in instances.values():
        instance.check()
        if not surplus:
            assert instance.num_tokens == sum(trajectories[t].length for t in instance.running)
        assert instance.phase is InstancePhase.ABSENT or instance.version <= newest
    fleet, published = rooms.fleet, rooms.training.published
    assert (fleet.empty_since is None) == bool(instances)
    assert fleet.num_absent == sum(i.phase is InstancePhase.ABSENT for i in instances.values())
    assert fleet.num_retiring == sum(i.is_retiring for i in instances.values())
    if fleet.all_hold == published:
        assert all(i.version >= published and i.phase is not InstancePhase.RELEASED for i in instances.values())
    for group in responses.all_groups():
        for trajectory in group.members.values():
            if trajectory.instance is not None and group.version is not None:
                assert instances[trajectory.instance].version >= group.version
