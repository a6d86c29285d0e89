"""Several Ray nodes on one machine: which node a worker runs on, and what is heard when a node goes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs the extra 'ray'")

import ray
from ray.cluster_utils import Cluster

from contract.worker_story import Story
from tailrace.config.ray_settings import RayResources
from tailrace.runtime.launchers.worker import WorkerSpec
from tailrace.runtime.ray.checkpoints import Courier
from tailrace.runtime.ray.launcher import RayLauncher
from tailrace.runtime.ray.resources import PlacementGroups
from tailrace.sizing.device_plan import DeviceDemand, plan_devices

pytestmark = [pytest.mark.ray, pytest.mark.slow]
SMALL = {"object_store_memory": 100_000_000}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A head with two CPUs. It can have more nodes."""
    os.environ["RAY_AUTH_MODE"] = "disabled"  # else Ray writes a token into the user's home directory
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False, **SMALL})
    ray.init(found.address, log_to_driver=False)
    try:
        yield found
    finally:
        ray.shutdown()
        found.shutdown()


def start(logs: Path, placement: PlacementGroups, name: str, story: Story) -> Any:
    spec = WorkerSpec(name=name, entry="runtime.ray.ray_workers:tell_node", init=None)
    return RayLauncher(logs, placement)(spec, hear=story.hear, lose=story.lose)


async def node_of(story: Story) -> str:
    node, _ = await story.message(0)  # type: ignore[misc]
    return str(node)


def test_workers_that_must_be_on_one_node_are_and_a_lost_node_is_said_so(cluster: Cluster, tmp_path: Path) -> None:
    second = cluster.add_node(num_cpus=3, resources={"second": 1.0}, **SMALL)
    kinds = {"rollout": RayResources(custom={"second": 0.1}), "training": RayResources()}
    placement = PlacementGroups(kinds, one_node={"training": 2})

    async def scenario() -> None:
        stories = {name: Story() for name in ("rollout-0", "training-0", "training-1")}
        workers = {name: start(tmp_path, placement, name, story) for name, story in stories.items()}
        nodes = {name: await node_of(story) for name, story in stories.items()}
        assert nodes["rollout-0"] == second.node_id
        assert nodes["training-0"] == nodes["training-1"]
        cluster.remove_node(second, allow_graceful=False)
        reason = await stories["rollout-0"].ending()
        assert reason.startswith("worker 'rollout-0' on node ")
        # Which of them depends on what Ray notices first.
        assert any(f"{what}: " in reason for what in ("was lost with its node", "cannot be reached any more"))
        await asyncio.gather(*(worker.stop(grace_s=5.0) for worker in workers.values()))

    try:
        asyncio.run(scenario())
    finally:
        placement.close()


def test_a_worker_without_a_place_starts_when_a_node_joins(cluster: Cluster, tmp_path: Path) -> None:
    placement = PlacementGroups({"rollout": RayResources(custom={"second": 1.0})})

    async def scenario() -> None:
        story = Story()
        worker = start(tmp_path, placement, "rollout-0", story)
        await asyncio.sleep(0.5)
        assert story.messages == []
        second = cluster.add_node(num_cpus=1, resources={"second": 1.0}, **SMALL)
        assert await node_of(story) == second.node_id
        await worker.stop(grace_s=5.0)

    asyncio.run(scenario())


@pytest.mark.parametrize("is_apart", [False, True], ids=["shared", "disaggregated"])
def test_actors_get_the_devices_of_the_plan(cluster: Cluster, tmp_path: Path, is_apart: bool) -> None:
    """Ray believes the number of GPUs that a node is said to have, and gives them out as if they were real."""
    gpu_node = cluster.add_node(num_cpus=8, num_gpus=6, **SMALL)
    demand = DeviceDemand(num_instances=2, devices_per_instance=2 if is_apart else 1, num_ranks=2, is_apart=is_apart)
    plan = plan_devices(demand, [str(number) for number in range(6)])
    placement = PlacementGroups({}, one_node={"training": 2}, plan=plan)
    names = ("training", "training-1", "rollout-0", "rollout-1")

    async def scenario() -> dict[str, set[str]]:
        stories = {name: Story() for name in names}
        workers = []
        for name, story in stories.items():
            spec = WorkerSpec(name=name, entry="runtime.ray.ray_workers:tell_devices", init=None)
            workers.append(RayLauncher(tmp_path, placement)(spec, hear=story.hear, lose=story.lose))
        found = {}
        for name, story in stories.items():
            node, devices = await story.message(0)  # type: ignore[misc]
            assert node == gpu_node.node_id
            found[name] = set(devices.split(","))
        await asyncio.gather(*(worker.stop(grace_s=5.0) for worker in workers))
        return found

    try:
        found = asyncio.run(scenario())
    finally:
        placement.close()
    assert [len(found[name]) for name in names] == ([1, 1, 2, 2] if is_apart else [1, 1, 1, 1])
    if is_apart:
        assert len(set.union(*found.values())) == 6
    else:
        assert found["training"] == found["rollout-0"]
        assert found["training-1"] == found["rollout-1"]
        assert found["training"] != found["training-1"]


def test_folders_are_copied_from_node_to_node_in_pieces(cluster: Cluster, tmp_path: Path) -> None:
    courier = Courier(ray.get_runtime_context().get_node_id(), piece_bytes=1000)
    here, there, back = tmp_path / "here", tmp_path / "there", tmp_path / "back"
    (here / "inner").mkdir(parents=True)
    contents = {"a": bytes(range(256)) * 10, "empty": b"", "inner/b": b"x" * 1000}
    for name, data in contents.items():
        (here / name).write_bytes(data)
    courier.deliver(here, there)
    courier.fetch(there, back)
    assert {name: (back / name).read_bytes() for name in contents} == contents
    with pytest.raises(OSError, match="on the controller's node"):
        courier.deliver(here, Path("/proc/nowhere"))
