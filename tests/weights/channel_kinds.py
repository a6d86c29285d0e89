"""The kinds of weight channel, made and opened in the same way, so that one suite can test them all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from tailrace.core.ids import Version
from tailrace.weights.channel import Fetched, WeightSink
from tailrace.weights.collective.sink import CollectiveSink
from tailrace.weights.collective.source import CollectiveSource
from tailrace.weights.sharding.layout import WeightLayout
from tailrace.weights.sharding.shards import whole_parts
from tailrace.weights.sharding.table import Holding
from tailrace.weights.sharding.transfer_plan import Slice, Transfer
from tailrace.weights.slots.cuda_ipc import DeviceSlots
from tailrace.weights.slots.device_memory import CudaMemory, DeviceMemory
from tailrace.weights.slots.mapped_file import MappedFile
from tailrace.weights.slots.two_slots import WeightReader, WeightWriter
from weights.file_memory import FileMemory

Meddle = Callable[[], None]


class Reader(Protocol):
    """What the suite asks of a reader: a ``WeightSource`` that can also be asked for everything."""

    def latest_version(self) -> Version | None: ...
    def senders(self) -> Sequence[Holding]: ...
    def fetch(self, minimum_version: Version, transfers: Sequence[Transfer]) -> Fetched: ...
    def fetch_whole(self, minimum_version: Version) -> tuple[Version, dict[str, torch.Tensor]]: ...
    def close(self) -> None: ...


class ChannelKind(Protocol):
    """A kind of channel. A path names a channel; a test may have several."""

    @property
    def device(self) -> torch.device:
        """Where pulled tensors are."""
        ...

    def writer(self, path: Path, layout: WeightLayout) -> WeightSink: ...
    def reader(self, path: Path) -> Reader: ...


class MeddledFile(MappedFile):
    """A reader's file: something happens when the first tensor has been copied."""

    def __init__(self, path: Path, meddle: Meddle) -> None:
        super().__init__(path, writable=False)
        self._meddle: Meddle | None = meddle

    def tensor_bytes(self, generation: int, index: int) -> NDArray[np.uint8]:
        if index == 1 and self._meddle is not None:
            meddle, self._meddle = self._meddle, None
            meddle()
        return super().tensor_bytes(generation, index)


class MeddledSlots(DeviceSlots):
    """A reader's slots: something happens before the copy."""

    def __init__(self, path: Path, memory: DeviceMemory, meddle: Meddle) -> None:
        super().__init__(path, memory)
        self._meddle: Meddle | None = meddle

    def slot(self, generation: int) -> torch.Tensor:
        block = super().slot(generation)
        meddle, self._meddle = self._meddle, None
        if meddle is not None:
            meddle()
        return block


class SharedMemoryChannel:
    device = torch.device("cpu")
    outlives_its_writer = True

    def writer(self, path: Path, layout: WeightLayout) -> WeightWriter:
        return make_writer(self, path, layout)

    def file(self, path: Path, layout: WeightLayout) -> MappedFile:
        return MappedFile.create(path, layout)

    def reader(self, path: Path) -> WeightReader:
        return WeightReader(MappedFile(path, writable=False))

    def meddled_reader(self, path: Path, meddle: Meddle) -> WeightReader:
        return WeightReader(MeddledFile(path, meddle))

    def change_byte(self, file: MappedFile, generation: int, entry: int, position: int) -> None:
        file.tensor_bytes(generation, entry)[position] ^= 1


class DeviceChannel:
    outlives_its_writer = False

    def __init__(self, memory: Callable[[Path], DeviceMemory], device: torch.device) -> None:
        """``memory``: the memory that a process uses for a channel with this path."""
        self._memory, self.device = memory, device

    def writer(self, path: Path, layout: WeightLayout) -> WeightWriter:
        return make_writer(self, path, layout)

    def file(self, path: Path, layout: WeightLayout) -> DeviceSlots:
        return DeviceSlots.create(path, layout, self._memory(path))

    def reader(self, path: Path) -> WeightReader:
        return WeightReader(DeviceSlots(path, self._memory(path)))

    def meddled_reader(self, path: Path, meddle: Meddle) -> WeightReader:
        return WeightReader(MeddledSlots(path, self._memory(path), meddle))

    def change_byte(self, file: DeviceSlots, generation: int, entry: int, position: int) -> None:
        file.slot(generation)[file.layout.entries[entry].offset + position] ^= 1


SlotKind = SharedMemoryChannel | DeviceChannel


class WholeSource(CollectiveSource):
    """A receiver that can ask for everything."""

    def fetch_whole(self, minimum_version: Version) -> tuple[Version, dict[str, torch.Tensor]]:
        [sender] = self.senders()
        slices = [Slice(parameter.name, parameter.box) for parameter in self.parameters()]
        transfers = [Transfer(slice=one, sender=sender.worker, receiver="all") for one in slices]
        version, found = self.fetch(minimum_version, transfers)
        return version, {one.parameter: found[one] for one in slices}


class CollectiveChannel:
    """The channel through torch.distributed, with one sender. A file tells the receivers its address."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.sinks: list[CollectiveSink] = []

    def writer(self, path: Path, layout: WeightLayout) -> CollectiveSink:
        self.sinks.append(CollectiveSink(whole_parts(layout), self.device))
        path.write_text(self.sinks[-1].address.location)
        return self.sinks[-1]

    def reader(self, path: Path) -> WholeSource:
        return WholeSource(path.read_text(), self.device)


def make_kind(name: str) -> SlotKind:
    if name == "shared memory":
        return SharedMemoryChannel()
    if name == "device memory in files":
        return DeviceChannel(lambda path: FileMemory(path.parent), torch.device("cpu"))
    assert name == "cuda"
    device = torch.device("cuda", 0)
    return DeviceChannel(lambda path: CudaMemory(device), device)


def make_writer(kind: SlotKind, path: Path, layout: WeightLayout) -> WeightWriter:
    return WeightWriter(kind.file(path, layout))
