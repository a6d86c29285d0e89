"""Page-locked memory of the host, in pieces of exactly the size that is asked for.

torch's own page-locked memory comes in powers of two: a third more for layers of 94 MB.
"""

from __future__ import annotations

import weakref

import torch
from torch import Tensor


class PageLockedMemory:
    """Owns the pieces that it gave, and unlocks them when it is deleted."""

    def __init__(self, device: torch.device) -> None:
        """``device``: the one that copies from and to this memory."""
        self._device = device
        self._locked: list[Tensor] = []
        # At the end of the process the driver does it, and may be gone before.
        weakref.finalize(self, _unlock, self._locked, device).atexit = False

    def take(self, num_bytes: int) -> Tensor:
        memory = torch.empty(num_bytes, dtype=torch.uint8)
        with torch.cuda.device(self._device):
            code = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), num_bytes, 0))
        if code:
            raise RuntimeError(f"{num_bytes:,} bytes of the host's memory could not be page-locked: CUDA error {code}")
        self._locked.append(memory)
        return memory


def _unlock(memories: list[Tensor], device: torch.device) -> None:
    torch.cuda.synchronize(device)  # a copy may still read it
    for memory in memories:
        torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())
