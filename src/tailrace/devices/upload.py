"""Arrays of the host on a device."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray


def upload(array: NDArray[np.generic], device: torch.device) -> torch.Tensor:
    """The array on the device; on a CPU it may share the array's memory.

    The copy to a GPU goes on while the host continues; from memory that is not pinned it would wait for the work
    before it.
    """
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
