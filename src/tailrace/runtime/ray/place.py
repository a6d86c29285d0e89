"""A Ray cluster as the place of a run's workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import ray

from tailrace.config.settings import Settings
from tailrace.runtime.mps import Sharing
from tailrace.runtime.place import Place
from tailrace.runtime.ray.cluster import connected
from tailrace.runtime.ray.launcher import RayLauncher
from tailrace.runtime.ray.resources import Placement
from tailrace.runtime.ray.samples import put_samples


@contextmanager
def open_ray(settings: Settings, *, logs: Path, trains: bool, say: Callable[[str], None]) -> Iterator[Place]:
    """Connect to Ray while the context is open."""
    counts = _worker_counts(settings, trains=trains)
    with connected(settings.ray, num_cpus=math.ceil(_placement(settings, counts, has_gpus=False).total(counts)["CPU"])):
        found = ray.cluster_resources()
        placement = _placement(settings, counts, has_gpus=found.get("GPU", 0) > 0)
        for line in _lines(found, placement.total(counts)):
            say(line)
        try:
            placement.reserve()
            launch = RayLauncher(logs, placement, gathers_checkpoints=settings.ray.checkpoints == "gathered")
            yield Place(launch=launch, sharing=Sharing(), pack=put_samples)
        finally:
            placement.close()


def _worker_counts(settings: Settings, *, trains: bool) -> dict[str, int]:
    """How many workers of each kind a run has."""
    return {
        "rollout": settings.rollout.num_instances,
        "training": settings.trainer.num_ranks if trains else 0,
        "reward": settings.reward.workers,
    }


def _placement(settings: Settings, counts: Mapping[str, int], *, has_gpus: bool) -> Placement:
    return Placement(
        settings.ray.resources,
        one_node={kind: counts[kind] for kind in settings.ray.one_node if counts[kind]},
        has_gpus=has_gpus and settings.model.device != "cpu",
    )


def _lines(found: Mapping[str, float], needed: Mapping[str, float]) -> Iterator[str]:
    has = ", ".join(f"{found.get(name, 0):g} {name}s" for name in ("CPU", "GPU"))
    yield f"workers run as Ray actors; the cluster has {has} on {len(ray.nodes())} node(s)"
    for name, number in needed.items():
        if number > found.get(name, 0):
            yield (
                f"the workers of this run need {number:g} {name}s: some wait until the cluster has them"
                f" (ray.*.{name.lower()}s says how many each needs)"
            )
