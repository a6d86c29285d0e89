"""Hands weights to ranks in other processes: one file per rank, in shared memory where the machine has it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

_SHARED_MEMORY = Path("/dev/shm")


@contextmanager
def rank_files(weights: Sequence[Mapping[str, Tensor]]) -> Iterator[list[str]]:
    """Write each rank's tensors to a file. The files are removed at the end."""
    place = str(_SHARED_MEMORY) if _SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="tailrace-ranks-", dir=place) as folder:
        paths = [Path(folder) / f"{rank}.safetensors" for rank in range(len(weights))]
        for path, own in zip(paths, weights, strict=True):
            save_file({name: tensor.cpu().contiguous() for name, tensor in own.items()}, path)
        yield [str(path) for path in paths]
