"""What Ray reserves for each worker, and on which node workers may run. ``bundles.py`` decides, this asks Ray."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tailrace.config.ray_settings import RayResources
from tailrace.runtime.ray.bundles import Reservations
from tailrace.sizing.device_plan import DevicePlan

_RESERVE_LIMIT_S = 10


class PlacementGroups:
    """Owns the placement groups of a run."""

    def __init__(
        self,
        resources: Mapping[str, RayResources],
        *,
        one_node: Mapping[str, int] | None = None,
        plan: DevicePlan | None = None,
    ) -> None:
        """``resources``: of one worker, by kind. ``one_node``: kinds that must be on one node, and how many workers
        each has. ``plan``: which GPU does what; None if none is used."""
        self._reservations = Reservations(resources=resources, one_node=one_node or {}, plan=plan)
        self._groups: dict[str, PlacementGroup] = {}

    def options(self, name: str) -> dict[str, Any]:
        """Ray's options for the actor of the worker with this name."""
        reserved = self._reservations.of(name)
        options: dict[str, Any] = {
            "num_cpus": reserved.cpus,
            "num_gpus": reserved.gpus,
            "resources": dict(reserved.custom),
        }
        if reserved.group is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                placement_group=self._group(reserved.group), placement_group_bundle_index=reserved.bundle
            )
        return options

    def total(self, counts: Mapping[str, int]) -> dict[str, float]:
        """What this many workers of each kind need together."""
        return self._reservations.total(counts)

    def reserve(self) -> None:
        """Reserve what workers need together, before other workers take it: without a trainer the run cannot begin.
        If there is no room now, Ray reserves it later."""
        groups = [self._group(name) for name in self._reservations.groups()]
        until = time.monotonic() + _RESERVE_LIMIT_S
        for group in groups:
            group.wait(timeout_seconds=max(0.0, until - time.monotonic()))

    def close(self) -> None:
        for group in self._groups.values():
            remove_placement_group(group)
        self._groups.clear()

    def _group(self, name: str) -> PlacementGroup:
        """The placement group with this name. If its node dies, Ray moves it as a whole to another one."""
        if name not in self._groups:
            group = self._reservations.groups()[name]
            strategy = "STRICT_PACK" if group.is_on_one_node else "PACK"
            self._groups[name] = placement_group([dict(bundle) for bundle in group.bundles], strategy=strategy)
        return self._groups[name]
