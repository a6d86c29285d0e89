"""A writer in a process of its own: publishes for ever, or stops half-way through its second version."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from tailrace.core.ids import Version
from tailrace.weights.shared_memory import WeightWriter, layout_of

SHAPES = {"embed": (37, 16), "norm": (5,), "scalar": (), "none": (0, 4), "head": (700, 41)}


def weights(version: int, dtype: torch.dtype = torch.float32) -> Iterator[tuple[str, Tensor]]:
    """Every element of a version is the version, so that a mixture shows."""
    for name, shape in SHAPES.items():
        yield name, torch.full(shape, float(version), dtype=dtype)


def half(version: int, announce: Path) -> Iterator[tuple[str, Tensor]]:
    yield from list(weights(version))[:3]
    announce.touch()
    time.sleep(600)


def main(how: str, path: Path) -> None:
    torch.set_num_threads(1)
    writer = WeightWriter.create(path, layout_of(weights(0)))
    if how == "half":
        writer.publish(Version(1), weights(1))
        writer.publish(Version(2), half(2, path.with_suffix(".half")))
    version = 0
    while True:
        writer.publish(Version(version), weights(version))
        version += 1


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
