"""Which device does what, on machines that are made up."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.config.model_settings import ModelSettings
from tailrace.config.parallel_layouts import plain_layouts
from tailrace.config.settings import Settings
from tailrace.runtime.gpus.found_devices import seen_by_worker, visible_devices
from tailrace.sizing.channel_choice import chosen_channel, refused_channel
from tailrace.sizing.device_plan import (
    DeviceDemand,
    DevicePlan,
    TooFewDevices,
    demand_of,
    device_env,
    plan_devices,
    refused_on_ray,
)

DEMANDS = st.builds(
    DeviceDemand,
    num_instances=st.integers(1, 9),
    devices_per_instance=st.integers(0, 4),
    num_ranks=st.integers(0, 9),
    is_apart=st.booleans(),
    num_judges=st.integers(0, 3),
    has_judges_apart=st.booleans(),
)


def machine(count: int) -> tuple[str, ...]:
    return tuple(str(number) for number in range(count))


def asked(**given: Any) -> Settings:
    return Settings.model_validate(given)


@given(demand=DEMANDS, count=st.integers(1, 50))
def test_every_worker_gets_its_devices_or_the_machine_is_refused(demand: DeviceDemand, count: int) -> None:
    if count < demand.least:
        with pytest.raises(TooFewDevices, match=rf"(?s){count}$"):
            plan_devices(demand, machine(count))
        return
    plan = plan_devices(demand, machine(count))
    assert plan == plan_devices(demand, machine(count))
    assert [len(own) for own in plan.rollout] == [demand.devices_per_instance] * demand.num_instances
    assert [len(own) for own in plan.training] == [1] * demand.num_ranks
    ranks = list(chain(*plan.training))
    assert len(set(ranks)) == len(ranks), "two ranks are on one device"
    for own in plan.rollout:
        assert len(set(own)) == len(own), "an instance has a device twice"
    assert set(plan.devices) <= set(machine(count))
    assert [len(own) for own in plan.judges] == [1] * demand.num_judges
    judges = list(chain(*plan.judges))
    if demand.has_judges_apart:
        assert len(set(judges)) == len(judges), "two judges are on one device"
        assert not plan.judged, "a judge's own device is used by others"
    elif demand.devices_per_instance:
        firsts = [own[0] for own in plan.rollout]
        assert judges == [firsts[number % len(firsts)] for number in range(demand.num_judges)]


@given(demand=DEMANDS, count=st.integers(1, 50))
def test_no_device_is_given_twice_where_there_are_enough_and_none_is_left_idle_for_nothing(
    demand: DeviceDemand, count: int
) -> None:
    if count < demand.least:
        return
    plan = plan_devices(demand, machine(count))
    users = Counter(chain(*plan.rollout))
    size, wanted = demand.devices_per_instance, demand.num_rollout_devices
    count -= demand.num_own_judges
    if demand.is_apart:
        assert not plan.shared
        assert set(users.values()) <= {1}
        assert len(plan.policy_devices) == demand.num_ranks + wanted
    elif size:
        places = min(demand.num_instances, count // size)
        assert len(users) == places * size, "a device that an instance could have had is idle"
        assert max(users.values()) - min(users.values()) <= 1, "instances are not dealt out evenly"
        assert len(plan.shared) == min(demand.num_ranks, len(users))
        assert len(plan.policy_devices) == max(demand.num_ranks, min(wanted, places * size))


@given(demand=DEMANDS)
def test_without_gpus_the_plan_is_trivial(demand: DeviceDemand) -> None:
    plan = plan_devices(demand, ())
    assert (plan.devices, plan.shared) == ((), ())
    assert len(plan.rollout) == demand.num_instances
    assert len(plan.training) == demand.num_ranks
    assert plan.judges == ((),) * demand.num_judges
    assert device_env(plan.of_instance(0)) == {}


def test_colocated_and_shared_put_both_on_the_same_devices_and_disaggregated_on_their_own() -> None:
    given_ = {"rollout": {"num_instances": 2, "tensor_parallel_size": 2}, "trainer": {"num_ranks": 4}}
    for placement in ("colocated", "shared"):
        demand = demand_of(asked(schedule={"placement": placement}, **given_), trains=True)
        plan = plan_devices(demand, machine(8))
        assert plan.training == (("0",), ("1",), ("2",), ("3",))
        assert plan.rollout == (("0", "1"), ("2", "3"))
        assert plan.shared == ("0", "1", "2", "3")
    demand = demand_of(asked(schedule={"placement": "disaggregated"}, **given_), trains=True)
    plan = plan_devices(demand, machine(8))
    assert plan.rollout == (("4", "5"), ("6", "7"))
    assert plan.line() == "devices: training on GPUs 0 to 3; rollout-0 on GPUs 4, 5; rollout-1 on GPUs 6, 7"
    with pytest.raises(
        TooFewDevices,
        match=r"^schedule.placement 'disaggregated' needs 8 GPUs, 4 for training \(trainer.num_ranks\) and 2 instances"
        r" x 2 for rollout \(rollout.num_instances, rollout.tensor_parallel_size\), and there are 7$",
    ):
        plan_devices(demand, machine(7))


@pytest.mark.parametrize(
    ("given_", "sentence"),
    [
        ({"trainer": {"num_ranks": 2}}, "trainer.num_ranks is 2, which needs as many GPUs, and there is 1"),
        (
            {"rollout": {"tensor_parallel_size": 4}},
            "rollout.tensor_parallel_size is 4, which needs as many GPUs, and there is 1",
        ),
    ],
)
def test_too_few_devices_are_refused_with_numbers(given_: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TooFewDevices) as refused:
        plan_devices(demand_of(asked(**given_), trains=True), machine(1))
    assert str(refused.value) == sentence


def test_a_run_that_does_not_train_needs_no_devices_for_it_and_saved_responses_need_none_for_rollout() -> None:
    given_ = {"schedule": {"placement": "disaggregated"}, "trainer": {"num_ranks": 4}}
    assert plan_devices(demand_of(asked(**given_), trains=False), machine(1)).devices == ("0",)
    saved = demand_of(asked(rollout={"from_run": "there", "tensor_parallel_size": 8}), trains=True)
    plan = plan_devices(saved, machine(1))
    assert (plan.rollout, plan.training, plan.shared) == (((),), (("0",),), ())


def test_a_worker_sees_only_its_devices_and_a_later_instance_those_of_an_earlier_one() -> None:
    plan = plan_devices(
        DeviceDemand(num_instances=2, devices_per_instance=2, num_ranks=1, is_apart=True), ("7", "3", "5", "1", "2")
    )
    assert device_env(plan.of_rank(0)) == {"CUDA_VISIBLE_DEVICES": "7"}
    assert device_env(plan.of_instance(0)) == {"CUDA_VISIBLE_DEVICES": "3,5"}
    assert plan.of_instance(3) == plan.of_instance(1) == ("1", "2")


def test_many_instances_are_summed_up_in_the_line() -> None:
    plan = plan_devices(DeviceDemand(num_instances=7, devices_per_instance=8, num_ranks=8, is_apart=True), machine(64))
    assert plan.line() == "devices: training on GPUs 0 to 7; 7 rollout instances on GPUs 8 to 63, 8 for each"
    assert plan_devices(DeviceDemand(num_instances=1, devices_per_instance=1, num_ranks=1), ()).line() == (
        "devices: everything runs on the CPU"
    )


@pytest.mark.parametrize(
    ("device", "count", "named", "expected"),
    [
        ("auto", 3, None, ("0", "1", "2")),
        ("cuda", 2, "5, 2", ("5", "2")),
        ("auto", 1, "5,99", ("5",)),
        ("auto", 2, "GPU-a,GPU-b", ("GPU-a", "GPU-b")),
        ("cuda:1", 3, None, ("1",)),
        ("cuda:1", 2, "5,2", ("2",)),
        ("cuda", 0, None, ("0",)),
        ("auto", 0, "", ()),
    ],
)
def test_devices_that_the_user_lets_us_see_are_used_and_no_others(
    device: str, count: int, named: str | None, expected: tuple[str, ...]
) -> None:
    environ = {} if named is None else {"CUDA_VISIBLE_DEVICES": named}
    assert visible_devices(device, count=count, environ=environ) == expected


def test_a_worker_that_sees_one_device_uses_it_under_the_number_0() -> None:
    assert seen_by_worker(ModelSettings(device="cuda:3")).device == "cuda"
    assert [seen_by_worker(ModelSettings(device=name)).device for name in ("auto", "cpu")] == ["auto", "cpu"]


def test_a_judge_computes_on_the_first_device_of_an_instance() -> None:
    given_ = {"rollout": {"num_instances": 2, "tensor_parallel_size": 2}, "trainer": {"num_ranks": 4}}
    reward = {"functions": ["judge"], "judge": {"model": "somewhere/judge", "workers": 3}}
    for placement, expected in (("shared", ("0", "2", "0")), ("disaggregated", ("4", "6", "4"))):
        demand = demand_of(asked(schedule={"placement": placement}, reward=reward, **given_), trains=True)
        plan = plan_devices(demand, machine(8))
        assert tuple(plan.of_judge(number)[0] for number in range(3)) == expected
        assert plan.judged == expected[:2]
    assert plan.line() == (
        "devices: training on GPUs 0 to 3; rollout-0 on GPUs 4, 5; rollout-1 on GPUs 6, 7; 3 judges on GPUs 4, 6"
    )
    saved = asked(rollout={"from_run": "there"}, reward=reward, trainer={"num_ranks": 2})
    assert plan_devices(demand_of(saved, trains=True), machine(2)).judges == (("0",), ("1",), ("0",))
    assert plan_devices(demand_of(saved, trains=False), machine(2)).judges == (("0",),) * 3


def test_a_judge_may_have_a_device_that_nobody_else_uses() -> None:
    own = {"functions": ["judge"], "judge": {"model": "somewhere/judge", "placement": "own"}}
    given_ = {"reward": own, "rollout": {"num_instances": 3}}
    demand = demand_of(asked(**given_), trains=True)
    plan = plan_devices(demand, machine(4))
    assert plan.line() == (
        "devices: training on GPU 0; rollout-0 on GPU 0; rollout-1 on GPU 1; rollout-2 on GPU 2; judge on GPU 3"
    )
    assert (plan.judged, plan.policy_devices) == ((), ("0", "1", "2"))
    assert plan_devices(demand, machine(8)).judges == (("3",),), "the first device that is free"
    assert plan_devices(demand, machine(2)).judges == (("1",),), "instances move together"
    assert demand.sentence() == (
        "1 training ranks and 3 rollout instances with 1 each, on the same devices; 1 judge, on a device of its own"
    )


@pytest.mark.parametrize(
    ("given_", "count", "sentence"),
    [
        (
            {},
            1,
            "trainer.num_ranks is 1, which needs as many GPUs, and 2 for judges (reward.judge.workers,"
            " reward.judge.placement 'own'), 3 together, and there is 1",
        ),
        (
            {"rollout": {"tensor_parallel_size": 4}},
            5,
            "rollout.tensor_parallel_size is 4, which needs as many GPUs, and 2 for judges (reward.judge.workers,"
            " reward.judge.placement 'own'), 6 together, and there are 5",
        ),
        (
            {"schedule": {"placement": "disaggregated"}},
            3,
            "schedule.placement 'disaggregated' needs 4 GPUs, 1 for training (trainer.num_ranks) and 1 instances x 1"
            " for rollout (rollout.num_instances, rollout.tensor_parallel_size), 2 for judges (reward.judge.workers,"
            " reward.judge.placement 'own'), and there are 3",
        ),
    ],
)
def test_too_few_devices_for_judges_of_their_own_are_refused_with_numbers(
    given_: dict[str, Any], count: int, sentence: str
) -> None:
    reward = {"functions": ["judge"], "judge": {"model": "somewhere/judge", "placement": "own", "workers": 2}}
    demand = demand_of(asked(reward=reward, **given_), trains=True)
    with pytest.raises(TooFewDevices) as refused:
        plan_devices(demand, machine(count))
    assert str(refused.value) == sentence
    assert len(plan_devices(demand, machine(demand.least)).judges) == 2


def test_ray_refuses_a_judge_beside_an_instance_of_several_devices() -> None:
    given_ = {"rollout": {"tensor_parallel_size": 2}, "schedule": {"placement": "disaggregated"}}
    found = []
    for placement in ("shared", "own"):
        reward = {"functions": ["judge"], "judge": {"model": "somewhere/judge", "placement": placement}}
        demand = demand_of(asked(reward=reward, **given_), trains=True)
        found.append(refused_on_ray(demand, plan_devices(demand, machine(4))))
    assert found == [
        "on Ray, rollout.tensor_parallel_size 2 needs GPUs that no judge uses: set reward.judge.placement to 'own'",
        None,
    ]


def test_weights_stay_on_the_device_beside_a_judge_on_another_one() -> None:
    reward = {"functions": ["judge"], "judge": {"model": "somewhere/judge", "placement": "own"}}
    given_ = asked(reward=reward, trainer={"weight_channel": "cuda-ipc"})
    plan = plan_devices(demand_of(given_, trains=True), machine(2))
    assert refused_channel(given_, plan) is None
    assert chosen_channel(asked(reward=reward), plan).name == "auto"


def planned(num_ranks: int, num_devices: int, *, is_apart: bool = False, num_instances: int = 1) -> DevicePlan:
    demand = DeviceDemand(num_instances=num_instances, devices_per_instance=1, num_ranks=num_ranks, is_apart=is_apart)
    return plan_devices(demand, machine(num_devices))


def test_weights_stay_on_the_device_only_if_everything_is_on_one_gpu() -> None:
    auto = asked()
    assert chosen_channel(auto, planned(1, 8)).name == "auto"
    assert chosen_channel(auto, planned(1, 0)).name == "auto"
    apart, several = chosen_channel(auto, planned(1, 2, is_apart=True)), chosen_channel(auto, planned(2, 2))
    assert apart.lines == ("weights go through shared memory, because rollout and training are on different GPUs",)
    assert several.lines == ("weights go through shared memory, because they use several GPUs",)
    assert (apart.name, several.name) == ("shared-memory", "shared-memory")


def test_a_channel_that_cannot_work_by_the_plan_is_refused() -> None:
    collective = asked(trainer={"weight_channel": "collective"})
    ipc = asked(trainer={"weight_channel": "cuda-ipc"})
    assert "needs a GPU, and none was found" in str(refused_channel(ipc, planned(1, 0)))
    assert refused_channel(ipc, planned(1, 1)) is None
    assert refused_channel(collective, planned(1, 2, is_apart=True)) is None
    assert refused_channel(collective, planned(1, 0)) is None, "gloo takes any number of processes on a CPU"
    assert refused_channel(collective, planned(2, 2, num_instances=2)) == (
        "trainer.weight_channel is 'collective', but rollout and training share 2 GPUs, and NCCL takes no two processes"
        " on one GPU: use 'shared-memory', or schedule.placement 'disaggregated'"
    )
    ipc = asked(trainer={"weight_channel": "cuda-ipc"})
    assert refused_channel(ipc, planned(1, 4)) is None
    assert refused_channel(ipc, planned(1, 2, is_apart=True)) == (
        "trainer.weight_channel is 'cuda-ipc', which works inside one GPU, and the run uses 2: use 'shared-memory'"
    )


SIZES: dict[str, Any] = {"num_instances": 4, "parallel_sizes": [1, 2, 4]}


def test_instances_of_all_parallel_sizes_are_on_the_same_devices() -> None:
    settings = asked(rollout=SIZES, trainer={"num_ranks": 1})
    plan = plan_devices(demand_of(settings, trains=True), machine(4))
    assert plan.rollout == (("0",), ("1",), ("2",), ("3",))
    assert plan.others == (("0", "1"), ("2", "3"), ("0", "1", "2", "3"))
    assert "instances of parallel sizes 1, 2, 4 take turns on the GPUs of rollout" in plan.line()


@pytest.mark.parametrize("initial", [1, 2, 4])
@pytest.mark.parametrize("placement", ["shared", "disaggregated"])
def test_the_plan_gives_each_instance_the_devices_that_the_core_says(initial: int, placement: str) -> None:
    rollout = SIZES | {"num_instances": 8 // initial, "tensor_parallel_size": initial}
    settings = asked(rollout=rollout, schedule={"placement": placement}, trainer={"num_ranks": 2})
    plan = plan_devices(demand_of(settings, trains=True), machine(10))
    devices = list(chain(*plan.rollout))
    layouts = plain_layouts(settings.rollout)
    assert sum(layout.count for layout in layouts) == len(plan.instances)
    for layout in layouts:
        for instance in layout.instances:
            assert plan.of_instance(instance) == tuple(devices[at] for at in layout.devices_of(instance))
    assert bool(plan.shared) == (placement == "shared")


def test_a_size_whose_parts_would_share_a_gpu_is_refused() -> None:
    demand = demand_of(asked(rollout=SIZES), trains=True)
    with pytest.raises(TooFewDevices, match=r"the largest of rollout\.parallel_sizes is 4.* and there are 2$"):
        plan_devices(demand, machine(2))
    assert plan_devices(demand, ()).others == ((), (), ()), "on a CPU nobody has a device"


def test_ray_divides_instances_only_on_devices_of_their_own() -> None:
    demand = demand_of(asked(rollout=SIZES), trains=True)
    assert "a size in rollout.parallel_sizes of 4 needs GPUs that training does not use" in str(
        refused_on_ray(demand, plan_devices(demand, machine(4)))
    )


def test_what_several_devices_cannot_share_is_refused_with_several_sizes_too() -> None:
    settings = asked(rollout=SIZES, trainer={"weight_channel": "cuda-ipc"})
    plan = plan_devices(demand_of(settings, trains=True), machine(4))
    assert "works inside one GPU, and the run uses 4" in str(refused_channel(settings, plan))
