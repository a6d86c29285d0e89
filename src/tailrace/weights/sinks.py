"""Makes the weight channel of a run, of the kind that ``trainer.weight_channel`` names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from tailrace.devices.cuda_driver import CudaError
from tailrace.weights.address import RAY_OBJECT_STORE
from tailrace.weights.channel import WeightSink
from tailrace.weights.collective.sink import CollectiveSink
from tailrace.weights.more_kinds import MORE_KINDS
from tailrace.weights.sharding.layout import WeightLayout
from tailrace.weights.sharding.shards import whole_parts
from tailrace.weights.slots import cuda_ipc, shared_memory

Choice = Literal["auto", "shared-memory", "cuda-ipc", "ray", "collective"]


def create_sink(
    name: str,
    layout: WeightLayout,
    *,
    choice: Choice,
    device: torch.device,
    say: Callable[[str], None],
    create_on_device: Callable[[str, WeightLayout, torch.device], WeightSink] = cuda_ipc.create_for,
) -> WeightSink:
    """Make the channel of the run with this name. ``device``: where trainer and rollout hold their weights."""
    if choice == "ray" and RAY_OBJECT_STORE not in MORE_KINDS:
        raise ValueError('trainer.weight_channel = "ray" needs runtime = "ray"')
    if choice in ("auto", "ray") and (more := MORE_KINDS.get(RAY_OBJECT_STORE)) is not None:
        say("weights are published in Ray's object store")
        return more.create(name, layout)
    if choice == "collective":
        say("weights are sent by this process through torch.distributed")
        return CollectiveSink(whole_parts(layout), device)
    if choice == "cuda-ipc" and device.type != "cuda":
        raise ValueError(f'trainer.weight_channel = "cuda-ipc" needs a CUDA device, and the model is on {device}')
    if choice == "shared-memory" or device.type != "cuda":
        say("weights are published in shared memory")
        return shared_memory.create_for(name, layout, say)
    try:
        sink = create_on_device(name, layout, device)
    except CudaError as error:
        if choice == "cuda-ipc":
            raise ValueError(f'trainer.weight_channel = "cuda-ipc" is not possible here: {error}') from error
        say(f"weights are published in shared memory, because device memory cannot be exported: {error}")
        return shared_memory.create_for(name, layout, say)
    say("weights are published on the device (CUDA IPC)")
    return sink
