"""Which device does what: each rollout instance gets its devices, and each training rank its device. Pure.

    colocated, shared    rollout-0  rollout-1              disaggregated    training      rollout-0     rollout-1
                         training   training-1                              training-1
                         GPU 0      GPU 1                                   GPU 0, GPU 1  GPU 2, GPU 3  GPU 4, GPU 5

* The devices of one instance are all different, and so are those of the training ranks: NCCL takes no two ranks on one
  GPU. With `disaggregated` no device is given twice at all.
* With `colocated` and `shared`, rollout and training are on the same devices. If there are fewer devices than the
  instances want, several instances share one.
* On a machine without GPUs nobody has a device: everything runs on the CPU.
* The plan depends on its arguments only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from tailrace.config.settings import Settings

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
DISAGGREGATED = "disaggregated"
_MOST_NAMED = 4
"""Instances that are named one by one; more are summed up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDemand:
    """What a run asks of the devices."""

    num_instances: int
    devices_per_instance: int
    num_ranks: int
    """Processes that train; 0: the run does not train."""
    is_apart: bool = False
    """Whether rollout and training need different devices (`disaggregated`)."""

    @property
    def num_rollout_devices(self) -> int:
        """Devices that rollout uses, if there are enough for every instance to have its own."""
        return self.num_instances * self.devices_per_instance

    @property
    def least(self) -> int:
        """Fewest devices with which the run works."""
        if self.is_apart:
            return self.num_ranks + self.num_rollout_devices
        return max(self.num_ranks, self.devices_per_instance)

    def sentence(self) -> str:
        """What the devices are for."""
        rollout = f"{self.num_instances} rollout instances with {self.devices_per_instance} each"
        how = "on devices of their own" if self.is_apart else "on the same devices"
        return f"{self.num_ranks} training ranks and {rollout}, {how}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlan:
    rollout: tuple[tuple[str, ...], ...]
    """The devices of each instance, by the names that CUDA_VISIBLE_DEVICES takes; empty: the CPU."""
    training: tuple[tuple[str, ...], ...]
    """The device of each training rank; empty: the CPU."""

    @property
    def devices(self) -> tuple[str, ...]:
        """All devices that are used, in order of first use."""
        return tuple(dict.fromkeys(chain(*self.training, *self.rollout)))

    @property
    def shared(self) -> tuple[str, ...]:
        """Devices that rollout and training both use."""
        rollout = set(chain(*self.rollout))
        return tuple(device for device in chain(*self.training) if device in rollout)

    def of_instance(self, instance: int) -> tuple[str, ...]:
        """A later instance takes the devices of an earlier one."""
        return self.rollout[instance % len(self.rollout)]

    def of_rank(self, rank: int) -> tuple[str, ...]:
        return self.training[rank] if rank < len(self.training) else ()

    def line(self) -> str:
        """The plan in one line, for people."""
        if not self.devices:
            return "devices: everything runs on the CPU"
        parts = [f"training on {_named(tuple(chain(*self.training)))}"] if self.training else []
        if len(self.rollout) > _MOST_NAMED:
            used = tuple(dict.fromkeys(chain(*self.rollout)))
            parts.append(f"{len(self.rollout)} rollout instances on {_named(used)}, {len(self.rollout[0])} for each")
        else:
            parts += [f"rollout-{number} on {_named(own)}" for number, own in enumerate(self.rollout)]
        return f"devices: {'; '.join(parts)}"


class TooFewDevices(ValueError):
    """The machine has fewer devices than the run needs. The message is for the user."""


def demand_of(settings: Settings, *, trains: bool) -> DeviceDemand:
    rollout = settings.rollout
    has_engine = rollout.from_run is None  # saved responses need no device
    return DeviceDemand(
        num_instances=rollout.num_instances,
        devices_per_instance=rollout.tensor_parallel_size if has_engine else 0,
        num_ranks=settings.trainer.num_ranks if trains else 0,
        is_apart=trains and settings.schedule.placement == DISAGGREGATED,
    )


def plan_devices(demand: DeviceDemand, devices: Sequence[str]) -> DevicePlan:
    """``devices``: those of the machine, by name; none: the CPU. Raises ``TooFewDevices``."""
    if not devices:
        return DevicePlan(rollout=((),) * demand.num_instances, training=((),) * demand.num_ranks)
    if demand.least > len(devices):
        raise TooFewDevices(_refusal(demand, len(devices)))
    first = demand.num_ranks if demand.is_apart else 0
    size = demand.devices_per_instance
    for_rollout = devices[first : first + demand.num_rollout_devices]
    places = (
        [tuple(for_rollout[at : at + size]) for at in range(0, len(for_rollout) - size + 1, size)] if size else [()]
    )
    return DevicePlan(
        rollout=tuple(places[instance % len(places)] for instance in range(demand.num_instances)),
        training=tuple((device,) for device in devices[: demand.num_ranks]),
    )


def refused_on_ray(demand: DeviceDemand, plan: DevicePlan) -> str | None:
    """Why Ray cannot give the workers these devices; None if it can."""
    if plan.shared and demand.devices_per_instance > 1:
        return (
            f"on Ray, rollout.tensor_parallel_size {demand.devices_per_instance} needs GPUs that training does not use:"
            " set schedule.placement to 'disaggregated'"
        )
    return None


def device_env(devices: Sequence[str]) -> Mapping[str, str]:
    """Environment variables of a worker that may see these devices only; a worker of the CPU gets none."""
    return {VISIBLE_DEVICES: ",".join(devices)} if devices else {}


def _refusal(demand: DeviceDemand, found: int) -> str:
    has = f"and there {'is' if found == 1 else 'are'} {found}"
    instances = f"{demand.num_instances} instances x {demand.devices_per_instance} for rollout"
    if demand.is_apart:
        return (
            f"schedule.placement 'disaggregated' needs {demand.least} GPUs, {demand.num_ranks} for training"
            f" (trainer.num_ranks) and {instances} (rollout.num_instances, rollout.tensor_parallel_size), {has}"
        )
    if demand.num_ranks >= demand.devices_per_instance:
        return f"trainer.num_ranks is {demand.num_ranks}, which needs as many GPUs, {has}"
    return f"rollout.tensor_parallel_size is {demand.devices_per_instance}, which needs as many GPUs, {has}"


def _named(devices: Sequence[str]) -> str:
    """The devices as text; numbers that follow each other as a range."""
    if not devices:
        return "no device"
    if len(devices) == 1:
        return f"GPU {devices[0]}"
    if all(device.isdecimal() for device in devices):
        numbers = [int(device) for device in devices]
        if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
            return f"GPUs {numbers[0]} to {numbers[-1]}"
    return f"GPUs {', '.join(devices)}"
