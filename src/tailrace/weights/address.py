"""Where published weights can be pulled from, as a value: it can be compared, pickled and sent in a message.

``weights/sources.py`` opens an address.
"""

from __future__ import annotations

from dataclasses import dataclass

SHARED_MEMORY = "shared memory"
CUDA_IPC = "CUDA IPC"
RAY_OBJECT_STORE = "Ray object store"
COLLECTIVE = "torch.distributed"
OPEN_TO_ALL = (SHARED_MEMORY, COLLECTIVE)
"""Kinds that any process of the machine can open. Ray's object store is open to Ray's workers only, and CUDA IPC to
processes on the same GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelAddress:
    kind: str
    """How weights travel: ``SHARED_MEMORY``, ``CUDA_IPC``, ``RAY_OBJECT_STORE`` or ``COLLECTIVE``."""
    location: str
    """What this kind needs to find the channel. ``RAY_OBJECT_STORE``: the name of the actor that
    publishes; ``COLLECTIVE``: the endpoints of all senders; the others: the path of the channel file."""
