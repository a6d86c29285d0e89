"""What Ray reserves for each worker, and on which node workers may run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tailrace.config.ray_settings import RayResources

_RESERVE_LIMIT_S = 10


def kind_of(name: str) -> str:
    """The kind of the worker with this name."""
    return name.partition("-")[0]


class Placement:
    """Owns the placement groups of a run: one for each kind of worker whose workers must be on one node."""

    def __init__(
        self,
        resources: Mapping[str, RayResources],
        *,
        one_node: Mapping[str, int] | None = None,
        has_gpus: bool = False,
    ) -> None:
        """``resources``: of one worker, by kind. ``one_node``: kinds that must be on one node, and how many workers
        each has. ``has_gpus``: whether the cluster has any."""
        self._resources, self._one_node, self._has_gpus = resources, one_node or {}, has_gpus
        self._groups: dict[str, PlacementGroup] = {}

    def options(self, name: str) -> dict[str, Any]:
        """Ray's options for the actor of the worker with this name."""
        kind, number = kind_of(name), name.partition("-")[2]
        options: dict[str, Any] = {
            "num_cpus": self._cpus(kind),
            "num_gpus": self._gpus(kind),
            "resources": self._of(kind).custom,
        }
        if kind in self._one_node:
            bundle = int(number or 0) % self._one_node[kind]
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                placement_group=self._group(kind), placement_group_bundle_index=bundle
            )
        return options

    def total(self, counts: Mapping[str, int]) -> dict[str, float]:
        """What so many workers of each kind need together."""
        cpus = sum(count * self._cpus(kind) for kind, count in counts.items())
        return {"CPU": cpus, "GPU": sum(count * self._gpus(kind) for kind, count in counts.items())}

    def reserve(self) -> None:
        """Reserve what kinds on one node need, before other workers take it: without a trainer the run cannot begin.
        If there is no room now, Ray reserves it later."""
        for kind in self._one_node:
            self._group(kind).wait(timeout_seconds=_RESERVE_LIMIT_S)

    def close(self) -> None:
        for group in self._groups.values():
            remove_placement_group(group)
        self._groups.clear()

    def _group(self, kind: str) -> PlacementGroup:
        """The placement group of a kind. If its node dies, Ray moves it as a whole to another one."""
        if kind not in self._groups:
            bundle = {"CPU": self._cpus(kind), "GPU": self._gpus(kind), **self._of(kind).custom}
            bundles = [{key: count for key, count in bundle.items() if count}] * self._one_node[kind]
            self._groups[kind] = placement_group(bundles, strategy="STRICT_PACK")
        return self._groups[kind]

    def _cpus(self, kind: str) -> float:
        return self._of(kind).cpus

    def _gpus(self, kind: str) -> float:
        gpus = self._of(kind).gpus
        if gpus is not None:
            return gpus
        return 1.0 if self._has_gpus and kind in ("rollout", "training") else 0.0

    def _of(self, kind: str) -> RayResources:
        return self._resources.get(kind) or RayResources()
