"""Copies of boxes out of stored parameters, and how many bytes they take."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch

from tailrace.weights.sharding.layout import WeightLayout
from tailrace.weights.sharding.stored_bytes import copy_box
from tailrace.weights.sharding.table import Box

SHAPE = (512, 256)
[ENTRY] = WeightLayout.build([("w", SHAPE, "bfloat16")]).entries
SLACK = 4096
"""Bytes of small Python objects that are made beside a copy."""


def box_of(rank: int, num_ranks: int, dim: int) -> Box:
    size = SHAPE[dim] // num_ranks
    return tuple((rank * size, (rank + 1) * size) if at == dim else (0, SHAPE[at]) for at in range(len(SHAPE)))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("num_ranks", [1, 2, 8])
def test_a_pull_for_all_ranks_copies_each_byte_of_a_parameter_once(num_ranks: int, dim: int) -> None:
    """Of an object in Ray's store, which is read-only, as many bytes are copied as the ranks hold."""
    stored = torch.arange(SHAPE[0] * SHAPE[1]).view(SHAPE).bfloat16()
    data = stored.view(torch.uint8).numpy().reshape(-1).copy()
    data.flags.writeable = False
    num_copied = 0
    for rank in range(num_ranks):
        box = box_of(rank, num_ranks, dim)
        tracemalloc.start()
        copied = copy_box(data, ENTRY, box)
        num_copied += tracemalloc.get_traced_memory()[1]  # the most that was allocated at the same time
        tracemalloc.stop()
        assert torch.equal(copied, stored[tuple(slice(*side) for side in box)])
        assert not np.shares_memory(copied.view(torch.uint8).numpy(), data)
    assert data.nbytes <= num_copied <= data.nbytes + num_ranks * SLACK
