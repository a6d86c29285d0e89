"""The device plan in Ray's terms, without a Ray."""

from __future__ import annotations

from math import fsum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.config.ray_settings import RayResources
from tailrace.runtime.ray.bundles import TOGETHER, Reservations
from tailrace.sizing.device_plan import DeviceDemand, plan_devices

KINDS = {"rollout": RayResources(cpus=2.0), "training": RayResources(cpus=4.0), "reward": RayResources(cpus=0.5)}


def reservations(demand: DeviceDemand, num_gpus: int, *one_node: str, **resources: RayResources) -> Reservations:
    counts = {"rollout": demand.num_instances, "training": demand.num_ranks, "reward": 2}
    return Reservations(
        resources=KINDS | resources,
        one_node={kind: counts[kind] for kind in one_node},
        plan=plan_devices(demand, [str(number) for number in range(num_gpus)]),
    )


def test_workers_on_devices_of_their_own_reserve_whole_gpus_and_ranks_stay_on_one_node() -> None:
    found = reservations(
        DeviceDemand(num_instances=2, devices_per_instance=2, num_ranks=2, is_apart=True), 6, "training"
    )
    assert [found.of(name).gpus for name in ("training", "training-1", "rollout-0", "rollout-1", "reward-0")] == [
        1.0, 1.0, 2.0, 2.0, 0.0
    ]  # fmt: skip
    group = found.groups()["training"]
    assert group.is_on_one_node
    assert group.bundles == ({"CPU": 4.0, "GPU": 1.0}, {"CPU": 4.0, "GPU": 1.0})
    assert (found.of("training-1").group, found.of("training-1").bundle) == ("training", 1)
    assert found.of("rollout-1").group is None
    assert found.total({"rollout": 2, "training": 2, "reward": 2}) == {"CPU": 13.0, "GPU": 6.0}


def test_other_resources_are_counted_too() -> None:
    found = reservations(
        DeviceDemand(num_instances=1, devices_per_instance=1, num_ranks=2),
        0,
        training=RayResources(custom={"big_disk": 0.5}),
    )
    assert found.total({"training": 2})["big_disk"] == 1.0


def test_workers_that_share_a_device_are_in_one_bundle_with_one_gpu() -> None:
    found = reservations(DeviceDemand(num_instances=3, devices_per_instance=1, num_ranks=2), 2, "training")
    group = found.groups()[TOGETHER]
    assert group.is_on_one_node
    assert group.bundles == ({"CPU": 8.0, "GPU": 1.0}, {"CPU": 6.0, "GPU": 1.0})
    assert [(found.of(name).bundle, found.of(name).gpus) for name in ("training", "rollout-0", "rollout-2")] == [
        (0, 0.3333), (0, 0.3333), (0, 0.3333)
    ]  # fmt: skip
    assert [(found.of(name).bundle, found.of(name).gpus) for name in ("training-1", "rollout-1")] == [
        (1, 0.5),
        (1, 0.5),
    ]
    assert found.of("reward-1").group is None


def test_instances_on_other_devices_are_in_the_group_only_if_they_must_be_on_its_node() -> None:
    demand = DeviceDemand(num_instances=3, devices_per_instance=1, num_ranks=1)
    apart, near = reservations(demand, 3, "training"), reservations(demand, 3, "training", "rollout")
    assert (apart.of("rollout-2").group, apart.of("rollout-2").gpus) == (None, 1.0)
    assert len(apart.groups()[TOGETHER].bundles) == 1
    assert (near.of("rollout-2").group, near.of("rollout-2").bundle) == (TOGETHER, 2)
    assert [bundle["GPU"] for bundle in near.groups()[TOGETHER].bundles] == [1.0, 1.0, 1.0]
    assert not reservations(demand, 3).groups()[TOGETHER].is_on_one_node


def test_numbers_that_the_user_gives_are_kept() -> None:
    demand = DeviceDemand(num_instances=1, devices_per_instance=1, num_ranks=1)
    found = reservations(demand, 1, "training", rollout=RayResources(gpus=0.25))
    assert (found.of("rollout-0").gpus, found.of("rollout-0").group) == (0.25, None)
    assert set(found.groups()) == {"training"}


@pytest.mark.parametrize("num_gpus", [0, 3])
def test_names_of_other_workers_and_clusters_without_gpus_reserve_no_gpu(num_gpus: int) -> None:
    found = reservations(DeviceDemand(num_instances=1, devices_per_instance=1, num_ranks=1), num_gpus, "training")
    assert found.of("anything-else").gpus == 0.0
    assert found.of("training").gpus == (0.5 if num_gpus else 0.0)


@given(
    demand=st.builds(
        DeviceDemand,
        num_instances=st.integers(1, 7),
        devices_per_instance=st.just(1),
        num_ranks=st.integers(1, 5),
        is_apart=st.booleans(),
    ),
    more=st.integers(0, 4),
    one_node=st.sets(st.sampled_from(["training", "rollout"])),
)
def test_a_bundle_has_room_for_its_workers_and_nobody_reserves_twice(
    demand: DeviceDemand, more: int, one_node: set[str]
) -> None:
    found = reservations(demand, demand.least + more, *sorted(one_node))
    names = [f"rollout-{n}" for n in range(demand.num_instances)] + [f"training-{n}" for n in range(demand.num_ranks)]
    for name, group in found.groups().items():
        for number, bundle in enumerate(group.bundles):
            inside = [
                found.of(each) for each in names if (found.of(each).group, found.of(each).bundle) == (name, number)
            ]
            assert inside, "a bundle that nobody uses"
            assert fsum(each.gpus for each in inside) <= bundle["GPU"]
            assert fsum(each.cpus for each in inside) == bundle["CPU"]
