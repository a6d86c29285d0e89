"""Which device does what: each rollout instance gets its devices, each training rank and each judge its device. Pure.

    colocated, shared    rollout-0  rollout-1              disaggregated    training      rollout-0     rollout-1
                         training   training-1                              training-1
                         GPU 0      GPU 1                                   GPU 0, GPU 1  GPU 2, GPU 3  GPU 4, GPU 5

* The devices of one instance are all different, and so are those of the training ranks: NCCL takes no two ranks on one
  GPU. With `disaggregated` no device is given twice at all.
* With `colocated` and `shared`, rollout and training are on the same devices. If there are fewer devices than the
  instances want, several instances share one.
* With `rollout.parallel_sizes`, instances of other sizes are on the same devices, one after the other, at other times.
* A judge computes beside the instances, on the first device of one of them, or has a device of its own
  (`reward.judge.placement`).
* On a machine without GPUs nobody has a device: everything runs on the CPU.
* The plan depends on its arguments only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from tailrace.config.judge_use import num_judge_models
from tailrace.config.parallel_layouts import plain_layouts
from tailrace.config.rollout_settings import RolloutSettings
from tailrace.config.settings import Settings

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
DISAGGREGATED = "disaggregated"
OWN = "own"
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
    num_judges: int = 0
    """Processes that hold a judge's model."""
    has_judges_apart: bool = False
    """Whether each judge needs a device that nobody else uses (`own`)."""
    others: tuple[tuple[int, int], ...] = ()
    """Other parallel sizes of instances: (devices of each, how many instances), in the order of their numbers."""

    @property
    def largest(self) -> int:
        """Most devices of an instance."""
        return max([self.devices_per_instance, *(size for size, _ in self.others)])

    @property
    def num_rollout_devices(self) -> int:
        """Devices that rollout uses, if there are enough for every instance to have its own."""
        return self.num_instances * self.devices_per_instance

    @property
    def num_own_judges(self) -> int:
        """Devices that only judges use."""
        return self.num_judges if self.has_judges_apart else 0

    @property
    def least(self) -> int:
        """Fewest devices with which the run works."""
        if self.is_apart:
            least = self.num_ranks + self.num_rollout_devices
        else:
            least = max(self.num_ranks, self.largest)
        return max(least + self.num_own_judges, min(1, self.num_judges))

    def sentence(self) -> str:
        """What the devices are for."""
        rollout = f"{self.num_instances} rollout instances with {self.devices_per_instance} each"
        rollout += "".join(f", or {count} with {size}" for size, count in self.others)
        how = "on devices of their own" if self.is_apart else "on the same devices"
        return f"{self.num_ranks} training ranks and {rollout}, {how}{self._judges()}"

    def _judges(self) -> str:
        if not self.num_judges:
            return ""
        judges = "1 judge" if self.num_judges == 1 else f"{self.num_judges} judges"
        each = "on a device of its own" if self.num_judges == 1 else "each on a device of its own"
        return f"; {judges}, {each if self.has_judges_apart else 'on devices of rollout'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlan:
    rollout: tuple[tuple[str, ...], ...]
    """The devices of each instance, by the names that CUDA_VISIBLE_DEVICES takes; empty: the CPU."""
    training: tuple[tuple[str, ...], ...]
    """The device of each training rank; empty: the CPU."""
    judges: tuple[tuple[str, ...], ...] = ()
    """The device of each judge; empty: the CPU."""
    others: tuple[tuple[str, ...], ...] = ()
    """The devices of each instance of another parallel size. Their numbers follow those of ``rollout``."""

    @property
    def instances(self) -> tuple[tuple[str, ...], ...]:
        """The devices of each instance, of all sizes, by its number."""
        return (*self.rollout, *self.others)

    @property
    def devices(self) -> tuple[str, ...]:
        """All devices that are used, in order of first use."""
        return tuple(dict.fromkeys(chain(*self.training, *self.instances, *self.judges)))

    @property
    def policy_devices(self) -> tuple[str, ...]:
        """Devices on which the policy lies: those of training and rollout."""
        return tuple(dict.fromkeys(chain(*self.training, *self.instances)))

    @property
    def shared(self) -> tuple[str, ...]:
        """Devices that rollout and training both use."""
        rollout = set(chain(*self.instances))
        return tuple(device for device in chain(*self.training) if device in rollout)

    @property
    def judged(self) -> tuple[str, ...]:
        """Devices that a judge shares with rollout or training."""
        judges = set(chain(*self.judges))
        return tuple(device for device in self.policy_devices if device in judges)

    def of_instance(self, instance: int) -> tuple[str, ...]:
        """A later instance takes the devices of an earlier one."""
        return self.instances[instance % len(self.instances)]

    def of_rank(self, rank: int) -> tuple[str, ...]:
        return self.training[rank] if rank < len(self.training) else ()

    def of_judge(self, number: int) -> tuple[str, ...]:
        return self.judges[number % len(self.judges)] if self.judges else ()

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
        if self.others:
            sizes = ", ".join(str(size) for size in sorted({len(own) for own in self.instances}))
            parts.append(f"instances of parallel sizes {sizes} take turns on the GPUs of rollout")
        if self.judges:
            on = _named(tuple(dict.fromkeys(chain(*self.judges))))
            parts.append(f"judge on {on}" if len(self.judges) == 1 else f"{len(self.judges)} judges on {on}")
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
        num_judges=num_judge_models(settings),
        has_judges_apart=settings.reward.judge.placement == OWN,
        others=_other_sizes(settings.rollout) if has_engine else (),
    )


def _other_sizes(rollout: RolloutSettings) -> tuple[tuple[int, int], ...]:
    by_number = sorted(plain_layouts(rollout), key=lambda layout: layout.first)
    return tuple((layout.size, layout.count) for layout in by_number if layout.size != rollout.tensor_parallel_size)


def plan_devices(demand: DeviceDemand, devices: Sequence[str]) -> DevicePlan:
    """``devices``: those of the machine, by name; none: the CPU. Raises ``TooFewDevices``."""
    if not devices:
        return DevicePlan(
            rollout=((),) * demand.num_instances,
            training=((),) * demand.num_ranks,
            judges=((),) * demand.num_judges,
            others=((),) * sum(count for _, count in demand.others),
        )
    if demand.least > len(devices):
        raise TooFewDevices(_refusal(demand, len(devices)))
    for_policy = devices[: len(devices) - demand.num_own_judges]
    first = demand.num_ranks if demand.is_apart else 0
    for_rollout = for_policy[first : first + demand.num_rollout_devices]
    plan = DevicePlan(
        rollout=_seats(for_rollout, demand.devices_per_instance, demand.num_instances),
        training=tuple((device,) for device in for_policy[: demand.num_ranks]),
        others=tuple(chain(*(_seats(for_rollout, size, count) for size, count in demand.others))),
    )
    return replace(plan, judges=_judges(demand, plan, devices))


def _seats(devices: Sequence[str], size: int, count: int) -> tuple[tuple[str, ...], ...]:
    """Devices of each of this many instances. If there are too few, several instances share some."""
    places = [tuple(devices[at : at + size]) for at in range(0, len(devices) - size + 1, size)] if size else [()]
    return tuple(places[number % len(places)] for number in range(count))


def _judges(demand: DeviceDemand, plan: DevicePlan, devices: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    if demand.has_judges_apart:
        free = [device for device in devices if device not in plan.policy_devices]
        return tuple((device,) for device in free[: demand.num_judges])
    # Saved responses need no device: then a judge computes beside training, or alone.
    places = _firsts(plan.rollout) or _firsts(plan.training) or [devices[0]]
    return tuple((places[number % len(places)],) for number in range(demand.num_judges))


def _firsts(given: Sequence[tuple[str, ...]]) -> list[str]:
    return [own[0] for own in given if own]


def refused_on_ray(demand: DeviceDemand, plan: DevicePlan) -> str | None:
    """Why Ray cannot give the workers these devices; None if it can."""
    what = f"{_named_size(demand)} {demand.largest}"
    if plan.shared and demand.largest > 1:
        return f"on Ray, {what} needs GPUs that training does not use: set schedule.placement to 'disaggregated'"
    if plan.judged and demand.largest > 1:
        return f"on Ray, {what} needs GPUs that no judge uses: set reward.judge.placement to 'own'"
    return None


def refused_by_servers(demand: DeviceDemand, gpus: Sequence[int]) -> str | None:
    """Why servers with these numbers of GPUs cannot hold the instances of all parallel sizes; None if they can."""
    if not demand.others or max(gpus, default=0) >= demand.largest:
        return None
    return (
        f"an instance of size {demand.largest} (rollout.parallel_sizes) must be inside one server, and the largest has"
        f" {max(gpus, default=0)} GPUs"
    )


def _named_size(demand: DeviceDemand) -> str:
    """The setting that has the largest instance."""
    is_other = demand.largest > demand.devices_per_instance
    return "a size in rollout.parallel_sizes of" if is_other else "rollout.tensor_parallel_size"


def device_env(devices: Sequence[str]) -> Mapping[str, str]:
    """Environment variables of a worker that may see these devices only; a worker of the CPU gets none."""
    return {VISIBLE_DEVICES: ",".join(devices)} if devices else {}


def _refusal(demand: DeviceDemand, found: int) -> str:
    has = f"and there {'is' if found == 1 else 'are'} {found}"
    judges = f"{demand.num_own_judges} for judges (reward.judge.workers, reward.judge.placement 'own')"
    instances = f"{demand.num_instances} instances x {demand.devices_per_instance} for rollout"
    if demand.is_apart:
        besides = f", {judges}" if demand.num_own_judges else ""
        return (
            f"schedule.placement 'disaggregated' needs {demand.least} GPUs, {demand.num_ranks} for training"
            f" (trainer.num_ranks) and {instances} (rollout.num_instances, rollout.tensor_parallel_size)"
            f"{besides}, {has}"
        )
    if demand.num_ranks >= demand.largest:
        what = f"trainer.num_ranks is {demand.num_ranks}, which needs as many GPUs"
    elif demand.largest > demand.devices_per_instance:
        what = (
            f"the largest of rollout.parallel_sizes is {demand.largest}, which needs as many GPUs, because NCCL takes"
            " no two parts of an instance on one"
        )
    else:
        what = f"rollout.tensor_parallel_size is {demand.devices_per_instance}, which needs as many GPUs"
    return f"{what}, and {judges}, {demand.least} together, {has}" if demand.num_own_judges else f"{what}, {has}"


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
