"""The main memory of the hosts of a run with GPUs, part by part. Pure.

Workers are where the device plan puts them. Locally there is one host. On Ray the plan assumes hosts with
``GPUS_PER_HOST`` GPUs each; channels that work inside one machine mean that there is one.

What is not counted: the controller, reward processes, and files that the system keeps in memory as long as it can.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from tailrace.sizing.channel_memory import CHANNEL_SLOTS, ChannelMemory
from tailrace.sizing.device_plan import DevicePlan
from tailrace.sizing.model_shape import ModelShape
from tailrace.sizing.parts import CONTEXT_BYTES, MemoryPart, ProcessMemory

GPUS_PER_HOST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLoad:
    """What the workers of a run keep in main memory."""

    channel: ChannelMemory
    itemsize: int
    """Bytes of a published number."""
    num_publishing: int
    """Ranks that hold the model once: the first ones."""
    moments_bytes: int = 0
    """AdamW's state of one rank, if it lies on the host."""
    gradients_bytes: int = 0
    """Gradients of one rank, if they wait on the host."""
    reference_bytes: int = 0
    """Layers of one rank's reference model, if they lie on the host."""
    offloaded_bytes: int = 0
    """Layers of one judge that lie in page-locked memory."""
    parks: bool = False
    """Whether instances of other parallel sizes keep their processes. Their weights are given away, and pulled when
    they come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Workers:
    """The workers of one host."""

    is_first: bool
    """Whether it is the host that publishes: the first rank's, or the first of all if nobody trains."""
    ranks: tuple[int, ...]
    sizes: tuple[int, ...]
    """How many devices each instance has, of all parallel sizes."""
    judges: tuple[int, ...]

    @property
    def num_instances(self) -> int:
        """Most instances that work at the same time: those of one size."""
        return max((self.sizes.count(size) for size in self.sizes), default=0)

    def num_processes(self, *, parks: bool) -> int:
        """``parks``: whether instances of all sizes have processes at the same time."""
        # vLLM has a process for each GPU of an instance, if there are several, besides the worker itself.
        by_size = [self.sizes.count(size) * (1 if size <= 1 else 1 + size) for size in {*self.sizes}]
        return len(self.ranks) + len(self.judges) + (sum(by_size) if parks else max(by_size, default=0))


def host_memories(
    shape: ModelShape, load: HostLoad, devices: DevicePlan, *, gpus_per_host: int | None
) -> tuple[ProcessMemory, ...]:
    """The hosts, in order; those in a row that hold the same are one entry. ``gpus_per_host``: None means one host."""
    hosts = _hosts(devices, gpus_per_host)
    found = [(number, tuple(_parts(shape, load, workers))) for number, workers in hosts.items()]
    memories = []
    for parts, group in groupby(found, key=lambda host: host[1]):
        numbers = [number for number, _ in group]
        memories.append(ProcessMemory(name=_name(numbers, len(hosts)), count=len(numbers), parts=parts))
    return tuple(memories)


def _hosts(devices: DevicePlan, gpus_per_host: int | None) -> Mapping[int, _Workers]:
    """The workers of each host. An instance is on the host of its first device."""
    place = {device: number for number, device in enumerate(devices.devices)}

    def host(own: Sequence[str]) -> int:
        return place[own[0]] // gpus_per_host if own and gpus_per_host else 0

    ranks, instances, judges = (
        [host(own) for own in kind] for kind in (devices.training, devices.instances, devices.judges)
    )
    return {
        number: _Workers(
            is_first=number == 0,
            ranks=tuple(rank for rank, at in enumerate(ranks) if at == number),
            sizes=tuple(len(own) for own, at in zip(devices.instances, instances, strict=True) if at == number),
            judges=tuple(judge for judge, at in enumerate(judges) if at == number),
        )
        for number in sorted({0, *ranks, *instances, *judges})
    }


def _parts(shape: ModelShape, load: HostLoad, workers: _Workers) -> Iterator[MemoryPart]:
    count = workers.num_processes(parks=load.parks)
    yield MemoryPart(
        name="processes", num_bytes=count * CONTEXT_BYTES, how=f"{count} x 0.5 GiB, Python and torch: assumed"
    )
    yield from _publishing(shape, load, workers)
    yield from _training(load, len(workers.ranks))
    yield from _pulling(shape, load, workers)
    if load.offloaded_bytes and workers.judges:
        how = f"page-locked: {len(workers.judges)} x {load.offloaded_bytes / 2**30:.2f} GiB, all layers of a judge"
        yield MemoryPart(name="offloaded layers", num_bytes=len(workers.judges) * load.offloaded_bytes, how=how)


def _training(load: HostLoad, num_ranks: int) -> Iterator[MemoryPart]:
    """What the ranks of a host keep there instead of on their devices."""
    for name, num_bytes, remark in (
        ("AdamW", load.moments_bytes, ""),
        ("gradients", load.gradients_bytes, ", page-locked"),
        ("reference", load.reference_bytes, ", page-locked: all layers of each"),
    ):
        if num_bytes and num_ranks:
            how = f"{_ranks(num_ranks)} x {num_bytes / 2**30:.2f} GiB{remark}"
            yield MemoryPart(name=name, num_bytes=num_ranks * num_bytes, how=how)


def _ranks(count: int) -> str:
    return f"{count} rank" if count == 1 else f"{count} ranks"


def _publishing(shape: ModelShape, load: HostLoad, workers: _Workers) -> Iterator[MemoryPart]:
    if load.channel.is_on_devices:
        return
    version = load.itemsize * shape.num_parameters
    if workers.is_first:
        where = "Ray's object store" if load.channel.is_in_object_store else "the channel file"
        how = f"{CHANNEL_SLOTS} x {version / 2**30:.2f} GiB, in {where}"
        yield MemoryPart(name="published versions", num_bytes=CHANNEL_SLOTS * version, how=how)
    gathering = [rank for rank in workers.ranks if rank < load.num_publishing]
    if load.num_publishing > 1 and gathering:
        largest = load.itemsize * shape.embedding_parameters
        how = f"{_ranks(len(gathering))} x the largest parameter, while it is published"
        yield MemoryPart(name="gathered weights", num_bytes=len(gathering) * largest, how=how, is_temporary=True)


def _pulling(shape: ModelShape, load: HostLoad, workers: _Workers) -> Iterator[MemoryPart]:
    count, version = workers.num_instances, load.itemsize * shape.num_parameters
    if not count:
        return
    each = f"{count} instances x {version / 2**30:.2f} GiB" if count > 1 else f"{version / 2**30:.2f} GiB"
    if load.channel.is_in_object_store and not workers.is_first:
        how = "a pulled version in Ray's object store, once for all instances"
        yield MemoryPart(name="object store", num_bytes=version, how=how, is_temporary=True)
    if not load.channel.is_on_devices:
        how = f"{each}, a new version until it is copied"
        yield MemoryPart(name="pulled copies", num_bytes=count * version, how=how, is_temporary=True)
    if load.channel.uses_rank_files:
        how = f"{each}, in files that hand each rank its part"
        yield MemoryPart(name="rank files", num_bytes=count * version, how=how, is_temporary=True)


def _name(numbers: Sequence[int], num_hosts: int) -> str:
    if num_hosts == 1:
        return "host"
    return f"host {numbers[0]}" if len(numbers) == 1 else f"hosts {numbers[0]} to {numbers[-1]}"
