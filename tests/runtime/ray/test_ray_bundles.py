"""The device plan in Ray's terms, without a Ray."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import fsum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.config.ray_settings import RayResources
from tailrace.config.settings import Settings
from tailrace.core.outcomes import Part
from tailrace.rewards.assignment import expected_parts
from tailrace.runtime.ray.bundles import BY_SIZE, TOGETHER, Reservations, worker_counts
from tailrace.sizing.device_plan import DeviceDemand, DevicePlan, demand_of, plan_devices, refused_by_servers

KINDS = {
    "rollout": RayResources(cpus=2.0), "training": RayResources(cpus=4.0), "reward": RayResources(cpus=0.5),
    "tests": RayResources(cpus=1.0), "judge": RayResources(cpus=3.0),
}  # fmt: skip


def reservations(demand: DeviceDemand, num_gpus: int, *one_node: str, **resources: RayResources) -> Reservations:
    counts = {"rollout": demand.num_instances, "training": demand.num_ranks, "reward": 2}
    counts |= {"judge": demand.num_judges, "tests": 2}
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


def of_all(found: Reservations, *names: str) -> list[tuple[str | None, int, float]]:
    return [(found.of(name).group, found.of(name).bundle, found.of(name).gpus) for name in names]


def test_a_judge_beside_rollout_and_training_is_in_their_bundle() -> None:
    demand = DeviceDemand(num_instances=1, devices_per_instance=1, num_ranks=1, num_judges=2)
    found = reservations(demand, 1, "training")
    assert of_all(found, "training", "rollout-0", "judge-0", "judge-1") == [(TOGETHER, 0, 0.25)] * 4
    assert found.groups()[TOGETHER].bundles == ({"CPU": 12.0, "GPU": 1.0},)
    counts = {"rollout": 1, "training": 1, "judge": 2, "tests": 2, "reward": 1}
    assert found.total(counts) == {"CPU": 14.5, "GPU": 1.0}


def test_a_judge_beside_rollout_alone_is_in_a_bundle_with_its_instance() -> None:
    demand = DeviceDemand(num_instances=2, devices_per_instance=1, num_ranks=1, is_apart=True, num_judges=2)
    apart, near = reservations(demand, 3, "training"), reservations(demand, 3, "training", "rollout")
    assert of_all(apart, "rollout-1", "judge-1", "rollout-0", "judge-0", "training") == [
        ("judge beside rollout-1", 0, 0.5), ("judge beside rollout-1", 0, 0.5),
        ("judge beside rollout-0", 0, 0.5), ("judge beside rollout-0", 0, 0.5), ("training", 0, 1.0),
    ]  # fmt: skip
    assert apart.groups()["judge beside rollout-1"].bundles == ({"CPU": 5.0, "GPU": 1.0},)
    assert of_all(near, "rollout-1", "judge-1") == [("rollout", 1, 0.5), ("rollout", 1, 0.5)]
    assert near.groups()["rollout"].bundles == ({"CPU": 5.0, "GPU": 1.0},) * 2
    # With placement `shared`, the second instance and its judge need not be on the node of training.
    beside = reservations(replace(demand, is_apart=False), 2, "training")
    assert of_all(beside, "rollout-0", "judge-0") == [(TOGETHER, 0, 0.3333)] * 2
    assert of_all(beside, "rollout-1", "judge-1") == [("judge beside rollout-1", 0, 0.5)] * 2


def test_a_judge_on_a_gpu_of_its_own_reserves_it() -> None:
    demand = DeviceDemand(
        num_instances=1, devices_per_instance=2, num_ranks=1, is_apart=True, num_judges=2, has_judges_apart=True
    )
    found, near = reservations(demand, 5, "training"), reservations(demand, 5, "judge")
    assert of_all(found, "judge-0", "judge-1", "rollout-0") == [(None, 0, 1.0), (None, 0, 1.0), (None, 0, 2.0)]
    assert of_all(near, "judge-0", "judge-1") == [("judge", 0, 1.0), ("judge", 1, 1.0)]
    assert near.groups()["judge"].is_on_one_node
    assert near.groups()["judge"].bundles == ({"CPU": 3.0, "GPU": 1.0},) * 2


def test_a_judge_with_a_number_of_the_user_or_without_a_gpu_is_placed_by_ray() -> None:
    demand = DeviceDemand(num_instances=1, devices_per_instance=1, num_ranks=1, num_judges=1)
    given_ = reservations(demand, 1, "training", judge=RayResources(gpus=0.2))
    assert of_all(given_, "judge-0", "rollout-0") == [(None, 0, 0.2), (TOGETHER, 0, 0.5)]
    elsewhere = reservations(replace(demand, num_judges=0), 1, "training")
    assert of_all(elsewhere, "judge-0", "tests-0") == [(None, 0, 0.0), (None, 0, 0.0)]
    assert of_all(reservations(demand, 0, "training"), "judge-0") == [(None, 0, 0.0)]


@pytest.mark.parametrize(
    ("given_", "named", "expected"),
    [
        ({}, (Part.FUNCTION,), {"reward": 3, "tests": 0, "judge": 0}),
        ({"functions": ["code_tests"]}, (Part.TESTS,), {"reward": 0, "tests": 3, "judge": 0}),
        (
            {"functions": ["code_tests", "judge"], "code_tests": {"workers": 7}, "judge": {"workers": 2}},
            (Part.TESTS, Part.JUDGE),
            {"reward": 0, "tests": 7, "judge": 2},
        ),
        (
            {"judge": {"url": "http://127.0.0.1:1/v1"}},
            (Part.FUNCTION, Part.JUDGE),
            {"reward": 3, "tests": 0, "judge": 1},
        ),
    ],
)
def test_workers_of_rewards_are_counted_by_the_rewards_that_the_settings_name(
    given_: dict[str, Any], named: tuple[Part, ...], expected: dict[str, int]
) -> None:
    settings = Settings.model_validate({"reward": {"workers": 3, **given_}, "rollout": {"num_instances": 2}})
    assert expected_parts(settings) == named
    assert worker_counts(settings, trains=True, parts=named) == {"rollout": 2, "training": 1, **expected}
    assert worker_counts(settings, trains=False, parts=tuple(Part))["training"] == 0
    assert all(worker_counts(settings, trains=True, parts=tuple(Part)).values())


def test_sources_that_all_name_rewards_need_no_default() -> None:
    source = {"name": "a", "path": "builtin:arith-train", "reward": ["code_tests"]}
    only = Settings.model_validate({"data": {"sources": [source]}})
    assert expected_parts(only) == (Part.TESTS,)
    mixed = Settings.model_validate({"data": {"sources": [source, {"name": "b", "path": "builtin:arith-train"}]}})
    assert expected_parts(mixed) == (Part.FUNCTION, Part.TESTS)


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
        num_judges=st.integers(0, 4),
        has_judges_apart=st.booleans(),
    ),
    more=st.integers(0, 4),
    one_node=st.sets(st.sampled_from(["training", "rollout", "judge"])),
)
def test_a_bundle_has_room_for_its_workers_and_nobody_reserves_twice(
    demand: DeviceDemand, more: int, one_node: set[str]
) -> None:
    found = reservations(demand, demand.least + more, *sorted(one_node))
    names = [f"rollout-{n}" for n in range(demand.num_instances)] + [f"training-{n}" for n in range(demand.num_ranks)]
    names += [f"judge-{n}" for n in range(demand.num_judges)]
    devices = {name: found._devices(name) for name in names}
    for one, other in combinations(names, 2):
        if devices[one] == devices[other] and "judge" in other:
            same = (found.of(one).group, found.of(one).bundle)
            assert same == (found.of(other).group, found.of(other).bundle) != (None, 0), "Ray may take two GPUs"
    for name, group in found.groups().items():
        for number, bundle in enumerate(group.bundles):
            inside = [
                found.of(each) for each in names if (found.of(each).group, found.of(each).bundle) == (name, number)
            ]
            assert inside, "a bundle that nobody uses"
            assert fsum(each.gpus for each in inside) <= bundle["GPU"]
            assert fsum(each.cpus for each in inside) == bundle["CPU"]


SIZES = DeviceDemand(num_instances=8, devices_per_instance=1, num_ranks=1, is_apart=True, others=((2, 4), (4, 2)))


def test_bundles_are_as_large_as_the_largest_parallel_size_and_smaller_ones_have_a_part_of_one() -> None:
    found = reservations(SIZES, 9, "training")
    group = found.groups()[BY_SIZE]
    assert group.bundles == ({"CPU": 8.0, "GPU": 4.0}, {"CPU": 8.0, "GPU": 4.0})
    assert not group.is_on_one_node, "only each bundle is"
    of = [(found.of(f"rollout-{number}").bundle, found.of(f"rollout-{number}").gpus) for number in range(14)]
    assert of == [(0, 1.0)] * 4 + [(1, 1.0)] * 4 + [(0, 2.0)] * 2 + [(1, 2.0)] * 2 + [(0, 4.0), (1, 4.0)]
    assert all(found.of(f"rollout-{number}").group == BY_SIZE for number in range(14))
    assert found.of("training").group == "training"
    assert found.total({"rollout": 8, "training": 1}) == {"CPU": 20.0, "GPU": 9.0}


@given(power=st.integers(0, 3), count=st.integers(1, 4), initial=st.integers(0, 3))
def test_the_instances_of_each_size_fit_into_the_bundles(power: int, count: int, initial: int) -> None:
    sizes = [2**each for each in range(power + 1)]
    first = sizes[min(initial, power)]
    others = tuple((size, count * sizes[-1] // size) for size in sizes if size != first)
    demand = DeviceDemand(
        num_instances=count * sizes[-1] // first, devices_per_instance=first, num_ranks=1, is_apart=True, others=others
    )
    found = reservations(demand, demand.least)
    if not others:
        assert BY_SIZE not in found.groups()
        return
    bundles = found.groups()[BY_SIZE].bundles
    numbers = range(demand.num_instances + sum(each for _, each in others))
    mine = [found.of(f"rollout-{number}") for number in numbers]
    for size in sizes:
        for number, bundle in enumerate(bundles):
            own = [each for each in mine if each.bundle == number and each.gpus == size]
            assert fsum(each.gpus for each in own) == bundle["GPU"] == sizes[-1]
            assert fsum(each.cpus for each in own) <= bundle["CPU"]


@pytest.mark.parametrize(("initial", "count", "sizes"), [(1, 4, "1,2,4"), (4, 1, "1,2,4"), (8, 2, "1,2,4,8")])
@pytest.mark.parametrize("one_node", [[], ["rollout"]])
def test_a_ray_of_the_runs_own_has_cpus_for_all_bundles_of_any_size(
    initial: int, count: int, sizes: str, one_node: list[str]
) -> None:
    """It is started before anybody knows the GPUs."""
    settings = Settings.model_validate(
        {
            "runtime": "ray",
            "ray": {"one_node": one_node},
            "rollout": {
                "num_instances": count, "tensor_parallel_size": initial, "parallel_sizes": sizes, "engine": "vllm"
            },
            "schedule": {"placement": "disaggregated"},
            "trainer": {"num_ranks": 2},
        }
    )  # fmt: skip
    demand, parts = demand_of(settings, trains=True), expected_parts(settings)
    every = worker_counts(settings, trains=True, parts=tuple(Part))
    on_cpu = planned(settings, plan_devices(demand, ()), every).total(every)["CPU"]
    counts = worker_counts(settings, trains=True, parts=parts)
    found = planned(settings, plan_devices(demand, [str(number) for number in range(demand.least)]), counts)
    needed = fsum(bundle["CPU"] for group in found.groups().values() for bundle in group.bundles)
    alone = fsum(found.of(f"reward-{number}").cpus for number in range(counts["reward"]))
    assert needed + alone <= on_cpu
    assert needed + alone <= found.total(counts)["CPU"]
    assert found.total(counts)["GPU"] <= len(found.plan.devices if found.plan else ())


def planned(settings: Settings, plan: DevicePlan, counts: dict[str, int]) -> Reservations:
    one_node = {kind: counts[kind] for kind in settings.ray.one_node if counts[kind]}
    return Reservations(resources=settings.ray.resources, one_node=one_node, plan=plan)


def test_servers_that_are_smaller_than_the_largest_size_are_refused() -> None:
    assert refused_by_servers(SIZES, [2, 4]) is None
    assert "must be inside one server, and the largest has 2 GPUs" in str(refused_by_servers(SIZES, [2, 2, 2, 2, 2]))
    assert refused_by_servers(replace(SIZES, others=()), [1]) is None
