"""Checksums of all tensors of a block of device memory, in a few kernels and without copying the block.

The block is read as lines of 64 bytes, which no two tensors share. The eight words of a line are added up, the sum is
multiplied by an odd number that depends on the line, and the products of a tensor are added up, modulo 2 ** 64. So any
single changed bit changes the checksum of its tensor, and lines that changed places almost always do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tailrace.weights.sharding.layout import ALIGNMENT, WeightLayout

_PART_LINES = 1 << 20
"""Lines that are worked on at a time, so that little memory is needed beside the block."""


def checksums(block: Tensor, layout: WeightLayout, *, part_lines: int = _PART_LINES) -> Tensor:
    """Return one number per tensor, in layout order, on the device of the block. Padding counts as well."""
    num_lines = layout.num_bytes // ALIGNMENT
    borders = [entry.offset // ALIGNMENT for entry in layout.entries] + [num_lines]
    lines = block[: layout.num_bytes].view(torch.int64).view(num_lines, ALIGNMENT // 8)
    factors = 2 * torch.arange(min(num_lines, part_lines), device=block.device) + 1
    before = torch.zeros(1, dtype=torch.int64, device=block.device)
    totals = [before.expand(sum(border == 0 for border in borders))]
    for start in range(0, num_lines, part_lines):
        sums = lines[start : start + part_lines].sum(dim=1)
        running = sums.mul_(factors[: len(sums)] + 2 * start).cumsum(0).add_(before)
        inside = [border - start - 1 for border in borders if start < border <= start + len(sums)]
        totals.append(running[torch.tensor(inside, dtype=torch.int64, device=block.device)])
        before = running[-1:]
    return torch.cat(totals).diff()
