"""Opens a channel address. A new kind of channel adds its line here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from tailrace.weights.address import COLLECTIVE, CUDA_IPC, SHARED_MEMORY, ChannelAddress
from tailrace.weights.channel import WeightSource
from tailrace.weights.collective.source import CollectiveSource
from tailrace.weights.more_kinds import MORE_KINDS
from tailrace.weights.slots import cuda_ipc, shared_memory

_OPENERS: dict[str, Callable[[str, torch.device], WeightSource]] = {
    SHARED_MEMORY: lambda location, device: shared_memory.open_reader(Path(location)),
    CUDA_IPC: lambda location, device: cuda_ipc.open_reader(Path(location), device),
    COLLECTIVE: CollectiveSource,
}
CPU = torch.device("cpu")


def open_source(address: ChannelAddress, device: torch.device = CPU) -> WeightSource:
    """``device``: where the receiver holds its weights."""
    if (more := MORE_KINDS.get(address.kind)) is not None:
        return more.open(address.location)
    opener = _OPENERS.get(address.kind)
    if opener is None:
        known = ", ".join((*_OPENERS, *MORE_KINDS))
        raise ValueError(f"cannot open a weight channel of kind {address.kind!r}; known kinds: {known}")
    return opener(address.location, device)
