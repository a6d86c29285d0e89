"""How the devices of a cluster are divided into node groups and rollout devices.

Each model has node groups of its own size. ``k`` jobs share a group, so a group of a model costs

    train_devices + k * rollout_devices

devices. ``k`` is the setting ``max_jobs_per_group``, or less where the duty of ``k`` such jobs would exceed
``max_duty``. Groups are added one by one, always to the model whose share of the work would take the longest, as long
as the devices suffice. So models finish a backlog as nearly at the same time as whole groups allow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tailrace.cluster.settings import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDemand:
    """One model's part of the work."""

    model: str
    train_devices: int
    rollout_devices: int
    duty: float
    work_s: float
    """Expected seconds of an average job of the mix that fall to this model, if it had one group alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    groups: Mapping[str, int]
    """Node groups of each model."""
    jobs_per_group: Mapping[str, int]
    rollout_devices: int
    """Devices for rollout, of all jobs together."""
    devices: int
    """All devices that are used."""


def jobs_per_group(duty: float, *, policy: Policy, max_jobs: int, max_duty: float) -> int:
    if policy is Policy.ISOLATED:
        return 1
    return max(1, min(max_jobs, int((max_duty + 1e-9) / duty)))


def explicit(demands: Sequence[ModelDemand], groups: Mapping[str, int], sharing: Mapping[str, int]) -> Partition:
    """Return the partition with these groups, and rollout devices for all jobs that can share them."""
    rollout = sum(groups[each.model] * sharing[each.model] * each.rollout_devices for each in demands)
    train = sum(groups[each.model] * each.train_devices for each in demands)
    return Partition(groups=groups, jobs_per_group=sharing, rollout_devices=rollout, devices=train + rollout)


def divide(demands: Sequence[ModelDemand], total_devices: int, sharing: Mapping[str, int]) -> Partition:
    """Divide ``total_devices``. ``sharing``: jobs per group of each model. Every model gets at least one group."""
    price = {each.model: each.train_devices + sharing[each.model] * each.rollout_devices for each in demands}
    groups = {each.model: 1 for each in demands}
    left = total_devices - sum(price.values())
    if left < 0:
        raise ValueError(f"one node group of each model needs {total_devices - left} devices, not {total_devices}")
    work = {each.model: each.work_s / sharing[each.model] for each in demands}
    while affordable := [model for model in groups if price[model] <= left]:
        slowest = max(affordable, key=lambda model: work[model] / groups[model])
        groups[slowest] += 1
        left -= price[slowest]
    return explicit(demands, groups, sharing)
