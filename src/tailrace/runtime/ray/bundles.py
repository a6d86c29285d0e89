"""The device plan in Ray's terms: how many GPUs each actor reserves, and which actors share a bundle. Pure.

A *bundle* is what Ray reserves on one node; a *group* of bundles is one placement group. Ray gives actors that reserve
parts of one GPU in one bundle the same GPU. So rollout and training that share a device by the plan are put into one
bundle with one GPU, and each reserves a part of it; so is a judge that computes beside an instance. Workers with
devices of their own reserve whole GPUs.

With parallel sizes a bundle is as large as the largest size: all its GPUs are in one server. Instances of smaller sizes
reserve a part of it each, at other times than the larger ones.

    a bundle of 4 GPUs      [    4    ]      [ 2 ][ 2 ]      [1][1][1][1]
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tailrace.config.ray_settings import RayResources
from tailrace.config.rollout_settings import RolloutSettings
from tailrace.config.settings import Settings
from tailrace.core.outcomes import Part
from tailrace.sizing.device_plan import DevicePlan

_PARTS = 10_000
"""Parts of one GPU that Ray can count."""
_POLICY = ("training", "rollout")
"""Kinds of workers that hold the policy."""
TOGETHER = "rollout and training"
"""Name of the group whose bundles rollout and training share."""
BY_SIZE = "rollout of all parallel sizes"
"""Name of the group in which instances of all parallel sizes take turns."""


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


def worker_counts(settings: Settings, *, trains: bool, parts: Collection[Part]) -> dict[str, int]:
    """How many workers of each kind a run has whose scores have these parts."""
    reward = settings.reward
    of_parts = {
        Part.FUNCTION: ("reward", reward.workers),
        Part.TESTS: ("tests", reward.code_tests.workers or reward.workers),
        Part.JUDGE: ("judge", reward.judge.workers),
    }
    return {
        "rollout": _most_instances(settings.rollout),
        "training": settings.trainer.num_ranks if trains else 0,
        **{kind: count if part in parts else 0 for part, (kind, count) in of_parts.items()},
    }


def _most_instances(rollout: RolloutSettings) -> int:
    """How many instances work at the same time at most: those of the smallest parallel size."""
    smallest = min(rollout.parallel_sizes, default=rollout.tensor_parallel_size)
    return rollout.num_instances * rollout.tensor_parallel_size // smallest


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
        members: dict[str, dict[int, list[str]]] = {}
        for name in self._names:
            group, bundle = self._place(name)
            if group is not None:
                members.setdefault(group, {}).setdefault(bundle, []).append(name)
        return {
            group: BundleGroup(
                bundles=tuple(self._bundle(bundles[number]) for number in sorted(bundles)),
                is_on_one_node=self._is_on_one_node(group),
            )
            for group, bundles in members.items()
        }

    def _is_on_one_node(self, group: str) -> bool:
        kinds = {TOGETHER: _POLICY, BY_SIZE: ("rollout",)}.get(group)
        return kinds is None or any(kind in self.one_node for kind in kinds)

    def total(self, counts: Mapping[str, int]) -> dict[str, float]:
        """What this many workers of each kind need together. Instances of several parallel sizes need their bundles."""
        names = [f"{kind}-{number}" for kind, count in counts.items() for number in range(count)]
        bundles: list[Mapping[str, float]] = []
        if self._blocks:
            names = [name for name in names if kind_of(name) != "rollout"]
            bundles = list(self.groups()[BY_SIZE].bundles)
        every = [*bundles, *(self._sum([name]) for name in names)]
        needed = {"CPU": 0.0, "GPU": 0.0}
        for name in {name for each in every for name in each} | needed.keys():
            needed[name] = math.fsum(each.get(name, 0.0) for each in every)
        return needed | {"GPU": round(needed["GPU"], 2)}

    @property
    def _names(self) -> list[str]:
        """Workers that may be in a group."""
        counts = dict(self.one_node)
        if self.plan is not None:
            counts |= {kind: len(places) for kind, places in self._places.items()}
        return [f"{kind}-{number}" for kind, count in counts.items() for number in range(count)]

    @property
    def _places(self) -> dict[str, tuple[tuple[str, ...], ...]]:
        """The devices of each worker, by kind. Judges with a number that the user gave have none by the plan."""
        if self.plan is None:
            return {}
        judges = self.plan.judges if self._of_kind("judge").gpus is None else ()
        return {"training": self.plan.training, "rollout": self.plan.instances, "judge": judges}

    @property
    def _is_by_plan(self) -> bool:
        """Whether rollout and training get GPUs by the plan, and not by numbers that the user gave."""
        return self.plan is not None and all(self._of_kind(kind).gpus is None for kind in _POLICY)

    @property
    def _together(self) -> list[tuple[str, ...]]:
        """The devices of the group that rollout and training share, one for each bundle; none if they share none.
        Instances on other devices are in it only if they must be on one node."""
        if self.plan is None or not self.plan.shared or not self._is_by_plan:
            return []
        return list(dict.fromkeys([*self.plan.training, *(self.plan.rollout if "rollout" in self.one_node else ())]))

    @property
    def _blocks(self) -> list[tuple[str, ...]]:
        """The devices of each instance of the largest parallel size, one for each bundle; none if there is one size."""
        if self.plan is None or not any(self.plan.others) or not self._is_by_plan:
            return []
        largest = max(len(own) for own in self.plan.instances)
        return [own for own in self.plan.instances if len(own) == largest]

    def _devices(self, name: str) -> tuple[str, ...]:
        kind = kind_of(name)
        if self.plan is None or not self._places.get(kind):
            return ()
        of = {"rollout": self.plan.of_instance, "training": self.plan.of_rank, "judge": self.plan.of_judge}
        return of[kind](number_of(name))

    def _gpus(self, name: str) -> float:
        if (given := self._of_kind(kind_of(name)).gpus) is not None:
            return given
        devices = self._devices(name)
        if len(devices) != 1:
            return float(len(devices))
        sharing = sum(places.count(devices) for places in self._places.values())
        return _PARTS // sharing / _PARTS

    def _place(self, name: str) -> tuple[str | None, int]:
        """The group and the bundle of this worker; no group: Ray chooses."""
        devices, together = self._devices(name), self._together
        if kind_of(name) == "rollout" and (blocks := self._blocks):
            return BY_SIZE, next(number for number, own in enumerate(blocks) if {*devices} <= {*own})
        if devices in together:
            return TOGETHER, together.index(devices)
        host = self._host(devices) if devices in self._places.get("judge", ()) else None
        kind = host[0] if host else kind_of(name)
        if kind in self.one_node:
            return kind, (host[1] if host else number_of(name)) % self.one_node[kind]
        return (f"judge beside {kind}-{host[1]}", 0) if host else (None, 0)

    def _host(self, devices: tuple[str, ...]) -> tuple[str, int] | None:
        """Kind and number of the first worker that holds the policy on these devices; None: there is none."""
        if not devices or not self._is_by_plan:
            return None
        hosts = [(kind, places.index(devices)) for kind in _POLICY if devices in (places := self._places[kind])]
        return hosts[0] if hosts else None

    def _bundle(self, names: list[str]) -> dict[str, float]:
        """What these workers reserve together: those that share a GPU, the whole of it. Instances of one parallel size
        are there at the same time, and none of another size."""
        if sizes := self._by_size(names):
            bundles = [self._sum(each) for each in sizes]
            return {key: max(each.get(key, 0.0) for each in bundles) for each in bundles for key in each}
        bundle = self._sum(names)
        if self._is_by_plan and any(len(self._devices(name)) == 1 for name in names):
            bundle["GPU"] = 1.0
        return {key: amount for key, amount in bundle.items() if amount}

    def _by_size(self, names: list[str]) -> list[list[str]]:
        """The workers of a bundle by their parallel size; nothing if the bundle is of another kind."""
        if not self._blocks or any(kind_of(name) != "rollout" for name in names):
            return []
        sizes = sorted({len(self._devices(name)) for name in names})
        return [[name for name in names if len(self._devices(name)) == size] for size in sizes]

    def _sum(self, names: list[str]) -> dict[str, float]:
        bundle: dict[str, float] = {}
        for name in names:
            own = self._of_kind(kind_of(name))
            for key, amount in {"CPU": own.cpus, "GPU": self._gpus(name), **own.custom}.items():
                bundle[key] = bundle.get(key, 0.0) + amount
        return {key: amount for key, amount in bundle.items() if amount}

    def _of_kind(self, kind: str) -> RayResources:
        return self.resources.get(kind) or RayResources()
