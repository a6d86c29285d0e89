"""A Ray cluster as the place of a run's workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import ray

from tailrace.config.load import SettingsError
from tailrace.config.settings import Settings
from tailrace.core.outcomes import Part
from tailrace.rewards.assignment import expected_parts
from tailrace.runtime.gpus.mps import GpuSharing
from tailrace.runtime.launchers.place import WorkerPlace
from tailrace.runtime.ray.bundles import worker_counts
from tailrace.runtime.ray.cluster import LOCAL, address_of, connected
from tailrace.runtime.ray.launcher import RayLauncher
from tailrace.runtime.ray.resources import PlacementGroups
from tailrace.runtime.ray.samples import put_samples
from tailrace.sizing.channel_choice import refused_channel
from tailrace.sizing.device_plan import DevicePlan, demand_of, plan_devices, refused_by_servers, refused_on_ray


@contextmanager
def open_ray(settings: Settings, *, logs: Path, trains: bool, say: Callable[[str], None]) -> Iterator[WorkerPlace]:
    """Connect to Ray while the context is open."""
    on_cpu = plan_devices(demand_of(settings, trains=trains), ())
    # A row of the data may name rewards that the settings do not: a Ray of the run's own has room for all kinds.
    every = worker_counts(settings, trains=trains, parts=tuple(Part))
    num_cpus = math.ceil(_placement(settings, every, on_cpu).total(every)["CPU"])
    counts = worker_counts(settings, trains=trains, parts=expected_parts(settings))
    with connected(settings.ray, num_cpus=num_cpus):
        found = ray.cluster_resources()
        plan = _plan(settings, int(found.get("GPU", 0)), trains=trains)
        placement = _placement(settings, counts, plan)
        for line in _lines(found, placement.total(counts), plan):
            say(line)
        try:
            placement.reserve()
            launch = RayLauncher(
                logs,
                placement,
                gathers_checkpoints=settings.ray.checkpoints == "gathered",
                is_local=address_of(settings.ray) == LOCAL,
            )
            yield WorkerPlace(launch=launch, sharing=GpuSharing(), plan=plan, names_devices=False, pack=put_samples)
        finally:
            placement.close()


def _plan(settings: Settings, num_gpus: int, *, trains: bool) -> DevicePlan:
    """The device plan of a run on a cluster with this many GPUs, which are numbered from 0: Ray chooses real ones. If
    there are too few, those that must still come are counted too."""
    demand = demand_of(settings, trains=trains)
    if not num_gpus or settings.model.device == "cpu":
        return plan_devices(demand, ())
    plan = plan_devices(demand, [str(number) for number in range(max(num_gpus, demand.least))])
    servers = [int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]]
    for sentence in (
        refused_on_ray(demand, plan),
        refused_by_servers(demand, servers),
        refused_channel(settings, plan),
    ):
        if sentence is not None:
            raise SettingsError(sentence)
    return plan


def _placement(settings: Settings, counts: Mapping[str, int], plan: DevicePlan) -> PlacementGroups:
    return PlacementGroups(
        settings.ray.resources,
        one_node={kind: counts[kind] for kind in settings.ray.one_node if counts[kind]},
        plan=plan,
    )


def _lines(found: Mapping[str, float], needed: Mapping[str, float], plan: DevicePlan) -> Iterator[str]:
    has = ", ".join(f"{found.get(name, 0):g} {name}s" for name in ("CPU", "GPU"))
    num_nodes = len(ray.nodes())
    yield f"workers run as Ray actors; the cluster has {has} on {num_nodes} {'node' if num_nodes == 1 else 'nodes'}"
    yield plan.line()
    for name, number in needed.items():
        if number > found.get(name, 0):
            what, setting = (f"{name}s", f"{name.lower()}s") if name in ("CPU", "GPU") else (f"of {name!r}", "custom")
            yield (
                f"the workers of this run need {number:g} {what}: some wait until the cluster has them"
                f" (ray.*.{setting} says how many each needs)"
            )
