"""Which instances and replicas a device plan puts on the same devices, and what a run says if nothing can be lent."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.config.memory_release import may_lend, releases_memory
from tailrace.config.settings import Settings
from tailrace.sizing.device_plan import DeviceDemand, plan_devices
from tailrace.sizing.shared_places import nothing_lent, shared_places

LENDS: dict[str, Any] = {
    "schedule": {"stream": "always", "lending": "fixed"},
    "rollout": {"num_instances": 2},
    "trainer": {"num_ranks": 2, "num_replicas": 2},
}
ON_A_CPU = plan_devices(DeviceDemand(num_instances=2, devices_per_instance=1, num_ranks=2), [])


def places(num_gpus: int, *, instances: int, size: int = 1, ranks: int, replicas: int) -> list[Any]:
    demand = DeviceDemand(num_instances=instances, devices_per_instance=size, num_ranks=ranks)
    plan = plan_devices(demand, [str(number) for number in range(num_gpus)])
    return [(place.instances, place.replicas) for place in shared_places(plan, replicas)]


def test_places_follow_the_devices() -> None:
    assert places(4, instances=4, ranks=4, replicas=2) == [((0, 1), (0,)), ((2, 3), (1,))]
    assert places(4, instances=2, size=2, ranks=4, replicas=4) == [((0,), (0, 1)), ((1,), (2, 3))]
    assert places(4, instances=1, size=4, ranks=4, replicas=4) == [((0,), (0, 1, 2, 3))]
    assert places(2, instances=4, ranks=2, replicas=2) == [((0, 2), (0,)), ((1, 3), (1,))], "two on one device"
    assert places(4, instances=2, ranks=4, replicas=2) == [((0, 1), (0,))], "the second replica has no instance"
    assert places(0, instances=4, ranks=2, replicas=2) == [((0, 1), (0,)), ((2, 3), (1,))], "on a CPU by order"
    assert places(4, instances=4, ranks=0, replicas=1) == []


def test_places_of_another_parallel_size_have_its_instances() -> None:
    demand = DeviceDemand(num_instances=4, devices_per_instance=1, num_ranks=4, others=((2, 2), (4, 1)))
    plan = plan_devices(demand, ["0", "1", "2", "3"])
    found = [
        [(p.instances, p.replicas) for p in shared_places(plan, 2, each)]
        for each in (range(4), range(4, 6), range(6, 7))
    ]
    assert found == [[((0, 1), (0,)), ((2, 3), (1,))], [((4,), (0,)), ((5,), (1,))], [((6,), (0, 1))]]
    on_cpu = plan_devices(demand, ())
    assert [(p.instances, p.replicas) for p in shared_places(on_cpu, 2, range(4, 6))] == [((4,), (0,)), ((5,), (1,))]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schedule": {"placement": "disaggregated"}}, "devices of their own"),
        ({"trainer": {"num_replicas": 1}}, "the trainer has one replica"),
        ({"rollout": {"num_instances": 1}}, "there is one instance"),
    ],
)
def test_where_nothing_can_be_lent_nobody_releases_memory_and_the_run_says_why(
    change: dict[str, Any], words: str
) -> None:
    given = Settings.model_validate({name: {**value, **change.get(name, {})} for name, value in LENDS.items()})
    assert not may_lend(given)
    assert not releases_memory(given)
    line = nothing_lent(given, ON_A_CPU)
    assert line is not None
    assert line.startswith("schedule.lending 'fixed': without lent instances, because ")
    assert words in line


def test_where_it_can_instances_release_memory() -> None:
    assert may_lend(Settings.model_validate(LENDS))
    assert releases_memory(Settings.model_validate(LENDS))
    assert not may_lend(Settings.model_validate({**LENDS, "schedule": {"stream": "always"}}))
    assert releases_memory(Settings.model_validate({"schedule": {"placement": "colocated"}}))


def test_a_device_plan_can_stand_in_the_way_too() -> None:
    given = Settings.model_validate(LENDS)
    gpus = [str(number) for number in range(4)]
    crossed = plan_devices(DeviceDemand(num_instances=2, devices_per_instance=1, num_ranks=4), gpus)
    line = nothing_lent(given, crossed)
    assert line is not None
    assert "no two groups of devices" in line
    assert nothing_lent(given, ON_A_CPU) is None
    brought = nothing_lent(Settings.model_validate({**LENDS, "schedule": {"preset": "rollpacker"}}), crossed)
    assert brought is not None
    assert brought.startswith("rollpacker: without lent instances, because there are no two groups")
    left_out = Settings.model_validate({"schedule": {"preset": "rollpacker"}})
    assert nothing_lent(left_out, crossed) is None, "the settings already leave it out, and another line says so"
