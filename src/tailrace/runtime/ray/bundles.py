"""The device plan in Ray's terms: how many GPUs each actor reserves, and which actors share a bundle. Pure.

A *bundle* is what Ray reserves on one node; a *group* of bundles is one placement group. Ray gives actors that reserve
parts of one GPU in one bundle the same GPU. So rollout and training that share a device by the plan are put into one
bundle with one GPU, and each reserves a part of it. Workers with devices of their own reserve whole GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tailrace.config.ray_settings import RayResources
from tailrace.sizing.device_plan import DevicePlan

_PARTS = 10_000
"""Parts of one GPU that Ray can count."""
ON_DEVICES = ("rollout", "training")
"""Kinds of workers that use GPUs."""
TOGETHER = "rollout and training"
"""Name of the group whose bundles rollout and training share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleGroup:
    bundles: tuple[Mapping[str, float], ...]
    is_on_one_node: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """What one worker reserves."""

    cpus: float
    gpus: float
    custom: Mapping[str, float]
    group: str | None = None
    """The group that its bundle belongs to; None: Ray chooses any node with room."""
    bundle: int = 0


def kind_of(name: str) -> str:
    """The kind of the worker with this name."""
    return name.partition("-")[0]


def number_of(name: str) -> int:
    """The number of the worker with this name; the first rank of training has none in its name."""
    return int(name.partition("-")[2] or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservations:
    """Reservations of all workers of a run."""

    resources: Mapping[str, RayResources]
    """What one worker reserves, by kind."""
    one_node: Mapping[str, int]
    """Kinds whose workers must be on one node, and how many workers each has."""
    plan: DevicePlan | None = None
    """None: the cluster has no GPUs, or the run does not use them."""

    def of(self, name: str) -> Reserved:
        kind = kind_of(name)
        own = self._of_kind(kind)
        group, bundle = self._place(name)
        return Reserved(cpus=own.cpus, gpus=self._gpus(name), custom=own.custom, group=group, bundle=bundle)

    def groups(self) -> dict[str, BundleGroup]:
        """The placement groups by name."""
        found = {
            kind: BundleGroup(
                bundles=tuple(self._bundle([f"{kind}-{number}"]) for number in range(count)), is_on_one_node=True
            )
            for kind, count in self.one_node.items()
            if not (self._shares_devices and kind in ON_DEVICES)
        }
        if self._shares_devices:
            bundles = tuple({**self._bundle(self._users(devices)), "GPU": 1.0} for devices in self._together)
            found[TOGETHER] = BundleGroup(
                bundles=bundles, is_on_one_node=any(kind in self.one_node for kind in ON_DEVICES)
            )
        return found

    def total(self, counts: Mapping[str, int]) -> dict[str, float]:
        """What this many workers of each kind need together."""
        workers = [self.of(f"{kind}-{number}") for kind, count in counts.items() for number in range(count)]
        gpus = math.fsum(worker.gpus for worker in workers)
        needed = {"CPU": math.fsum(worker.cpus for worker in workers), "GPU": round(gpus, 2)}
        for name in {name for worker in workers for name in worker.custom}:
            needed[name] = math.fsum(worker.custom.get(name, 0.0) for worker in workers)
        return needed

    @property
    def _shares_devices(self) -> bool:
        """Whether rollout and training share GPUs by the plan, and not by numbers that the user gave."""
        is_ours = all(self._of_kind(kind).gpus is None for kind in ON_DEVICES)
        return self.plan is not None and bool(self.plan.shared) and is_ours

    @property
    def _together(self) -> list[tuple[str, ...]]:
        """The devices of the group that rollout and training share, one for each bundle. Instances on other devices
        are in it only if they must be on one node."""
        assert self.plan is not None
        return list(dict.fromkeys([*self.plan.training, *(self.plan.rollout if "rollout" in self.one_node else ())]))

    def _users(self, devices: tuple[str, ...]) -> list[str]:
        """Names of all workers on these devices."""
        assert self.plan is not None
        ranks = [f"training-{rank}" for rank, own in enumerate(self.plan.training) if own == devices]
        return ranks + [f"rollout-{number}" for number, own in enumerate(self.plan.rollout) if own == devices]

    def _devices(self, name: str) -> tuple[str, ...]:
        kind = kind_of(name)
        if self.plan is None or kind not in ON_DEVICES:
            return ()
        return self.plan.of_instance(number_of(name)) if kind == "rollout" else self.plan.of_rank(number_of(name))

    def _gpus(self, name: str) -> float:
        if (given := self._of_kind(kind_of(name)).gpus) is not None:
            return given
        devices = self._devices(name)
        if len(devices) != 1 or self.plan is None:
            return float(len(devices))
        sharing = [*self.plan.rollout, *self.plan.training].count(devices)
        return _PARTS // sharing / _PARTS

    def _place(self, name: str) -> tuple[str | None, int]:
        kind = kind_of(name)
        if self._shares_devices and kind in ON_DEVICES:
            devices, together = self._devices(name), self._together
            return (TOGETHER, together.index(devices)) if devices in together else (None, 0)
        return (kind, number_of(name) % self.one_node[kind]) if kind in self.one_node else (None, 0)

    def _bundle(self, names: list[str]) -> dict[str, float]:
        """What these workers reserve together."""
        bundle: dict[str, float] = {}
        for name in names:
            own = self._of_kind(kind_of(name))
            for key, amount in {"CPU": own.cpus, "GPU": self._gpus(name), **own.custom}.items():
                bundle[key] = bundle.get(key, 0.0) + amount
        return {key: amount for key, amount in bundle.items() if amount}

    def _of_kind(self, kind: str) -> RayResources:
        return self.resources.get(kind) or RayResources()
