"""The controller's interface to a worker, wherever it runs: in a process here, or on another machine.

    spec = WorkerSpec(name="training", entry="tailrace.workers.training_worker:serve", init=...)
    worker = launch(spec, hear=on_message, lose=on_end)
    worker.send(message)

* Messages are delivered to ``hear`` in the event loop's thread, in the order sent, and all of them before the end.
* ``lose`` is called exactly once, with a sentence that says why, when the worker ends by itself or by ``kill``; never
  after ``stop`` was called.
* ``send`` never blocks. Messages are pickled, so the two sides never share an object.
* Use a worker from the event loop that started it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

Hear = Callable[[object], None]
Lose = Callable[[str], None]

OPENMP_PASSIVE_WAIT = {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}
"""Environment of workers that share cores: idle OpenMP threads sleep instead of spinning."""

GROWING_SEGMENTS = {"PYTORCH_ALLOC_CONF": os.environ.get("PYTORCH_ALLOC_CONF", "expandable_segments:True")}
"""Environment of training and judges. Their batches differ in length, and torch would keep a block of GPU memory for
every size it has met: more than twice what is in use. In segments that grow, one block serves all sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """What a worker does, independent of where it runs."""

    name: str
    entry: str
    """The function ``module:name`` that does the work. It is called with the worker's ``Link`` and ``init``."""
    init: object
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that must be set before the function is imported."""
    gather_s: float = 0.0
    """Longest time for which its messages may be held back, to be delivered together with those of other workers."""


class WorkerHandle(Protocol):
    """One started worker."""

    @property
    def is_alive(self) -> bool: ...

    def send(self, message: object) -> None:
        """Queue a message. A message to a worker that has ended is dropped: ``lose`` will be called."""
        ...

    def kill(self) -> None:
        """End the worker at once. ``lose`` is called afterwards. A second ``kill`` has no effect."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Let the worker end by itself within ``grace_s`` seconds, then kill it. Nothing is delivered any more."""
        ...


class Launcher(Protocol):
    """Starts workers in one kind of place, such as processes of this machine."""

    @property
    def shares_files(self) -> bool:
        """Whether its workers see the controller's files under the same paths."""
        ...

    def __call__(self, spec: WorkerSpec, *, hear: Hear, lose: Lose) -> WorkerHandle: ...
