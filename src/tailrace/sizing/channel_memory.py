"""Where the versions of a weight channel lie, and the copies that instances pull. Pure.

                two published versions                       a pulled version
shared-memory   file of the first rank's host                memory of the instance's host
ray             Ray's object store, first rank's node        object store of the instance's node, and its memory
cuda-ipc        the GPU                                      the GPU
collective      each sender's GPU, its own part              GPUs of the instance
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.config.settings import Settings

CHANNEL_SLOTS = 2
"""Versions that a weight channel holds (``weights/slots/control_file.py``). Ray's store and the senders of the
collective channel hold as many while the newer one is written."""
PULLED_BY_RANKS = ("shared-memory", "collective")
"""Channels out of which each rank of an instance pulls its own slices. From others one process pulls for all ranks and
hands each its part in a file."""
_ON_DEVICES = ("cuda-ipc", "collective")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelMemory:
    name: str
    """A value of `trainer.weight_channel`, other than `auto`."""
    num_senders: int
    """Ranks that divide the published versions among themselves."""
    num_receivers: int
    """Processes of one instance that divide a pulled version among themselves."""
    uses_rank_files: bool
    """Whether the process that pulls hands the other ranks of its instance their parts in files."""

    @property
    def is_on_devices(self) -> bool:
        """Whether versions and pulled copies are in the memory of GPUs, if the run has GPUs."""
        return self.name in _ON_DEVICES

    @property
    def is_in_object_store(self) -> bool:
        return self.name == "ray"


def channel_memory(settings: Settings, *, is_cuda: bool, num_devices: int) -> ChannelMemory:
    """``num_devices``: GPUs over which rollout and training are spread."""
    name, trainer, size = _name(settings, is_cuda, num_devices), settings.trainer, settings.rollout.tensor_parallel_size
    # With LoRA or tensor parallelism one rank sends everything (``workers/weight_outlet.py``).
    is_divided = name == "collective" and not settings.model.lora_rank and trainer.tensor_parallel_size == 1
    return ChannelMemory(
        name=name,
        num_senders=trainer.num_ranks // trainer.num_replicas if is_divided else 1,
        num_receivers=size if name in PULLED_BY_RANKS else 1,
        uses_rank_files=size > 1 and name not in PULLED_BY_RANKS,
    )


def _name(settings: Settings, is_cuda: bool, num_devices: int) -> str:
    """The channel that `auto` becomes (``channel_choice.py``, ``weights/sinks.py``)."""
    asked = settings.trainer.weight_channel
    if asked != "auto":
        return asked
    if settings.runtime == "ray":
        return "ray"
    num_parts = settings.rollout.num_instances * settings.rollout.tensor_parallel_size
    is_apart = settings.schedule.placement == "disaggregated" or min(num_parts, num_devices) > 1
    return "cuda-ipc" if is_cuda and settings.trainer.num_ranks == 1 and not is_apart else "shared-memory"
