"""Tensors over the bytes in which a channel stores a parameter, and copies of boxes of them.

A copy takes the bytes of its box and no others, however large the parameter is.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailrace.weights.sharding.layout import ITEM_BYTES, Entry
from tailrace.weights.sharding.table import Box


def copy_box(data: NDArray[np.uint8], entry: Entry, box: Box) -> Tensor:
    """Copy a box of the parameter. ``data``: its bytes, which may be read-only and may have padding behind them."""
    return tensor_of(copy_bytes(data, entry, box), entry, box)


def copy_bytes(data: NDArray[np.uint8], entry: Entry, box: Box) -> NDArray[np.uint8]:
    """Copy the bytes of a box, one item after the other."""
    items = data[: entry.num_bytes].reshape(*entry.shape, ITEM_BYTES[entry.dtype])
    return items[tuple(slice(start, stop) for start, stop in box)].flatten()


def tensor_over(data: NDArray[np.uint8], entry: Entry) -> Tensor:
    """Make a tensor of the whole parameter that shares memory with the bytes."""
    dtype = getattr(torch, entry.dtype)
    if not entry.num_bytes:
        return torch.empty(entry.shape, dtype=dtype)
    return torch.from_numpy(data[: entry.num_bytes]).view(dtype).view(entry.shape)


def tensor_of(copied: NDArray[np.uint8], entry: Entry, box: Box) -> Tensor:
    """Make a tensor of a box from what ``copy_bytes`` returned; nothing is copied."""
    sizes = [stop - start for start, stop in box]
    return torch.from_numpy(copied).view(getattr(torch, entry.dtype)).view(sizes)
