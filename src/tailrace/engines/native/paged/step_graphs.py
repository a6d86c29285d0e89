"""Several decode steps as one CUDA graph, for every size of batch that occurs.

A graph repeats the same kernels on the same addresses, so Python does nothing between its steps. Graphs are captured
when a size is first needed and share one memory pool, because they never run at the same time. They stay valid when
weights are pulled, because weights are copied in place, and when memory is released and restored, because it comes back
at the same addresses (``devices/releasable_memory.py``). On a CPU the steps simply run.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from itertools import count, takewhile

import torch

Steps = Callable[[int, bool], None]
"""Runs the steps of one replay: for a number of rows, with or without truncated sampling."""


def row_classes(max_rows: int) -> list[int]:
    """Batch sizes that get a graph: powers of two up to 32, then four sizes between two powers of two."""
    small = [1, 2, 4, 8, 16, 32]
    large = (size + part * size // 4 for size in (32 << power for power in count()) for part in range(1, 5))
    return [size for size in (*small, *takewhile(lambda size: size < max_rows, large)) if size < max_rows] + [max_rows]


class StepGraphs:
    def __init__(self, *, max_rows: int, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._classes = row_classes(max_rows)
        self._graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}
        self._pool: object = None

    def size_for(self, num_rows: int) -> int:
        """The smallest size that has room for these rows."""
        return next(size for size in self._classes if size >= num_rows)

    def has(self, num_rows: int, is_truncated: bool) -> bool:
        return not self._is_cuda or (num_rows, is_truncated) in self._graphs

    def run(self, steps: Steps, num_rows: int, is_truncated: bool) -> None:
        if self._is_cuda:
            self._graphs[num_rows, is_truncated].replay()
        else:
            steps(num_rows, is_truncated)

    def capture(self, steps: Steps, num_rows: int, is_truncated: bool) -> None:
        """Record the graph of this size. Its steps run once before, so all rows must be empty."""
        steps(num_rows, is_truncated)  # compiles kernels and lets libraries allocate what they keep
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool), _without_collection():
            steps(num_rows, is_truncated)
        self._pool = self._pool or graph.pool()
        self._graphs[num_rows, is_truncated] = graph

    def clear(self) -> None:
        """Drop all graphs and their memory pool."""
        self._graphs.clear()
        self._pool = None


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """During a capture nothing on the device may be freed, as a collection of garbage might do."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
