"""Publishes a version in a thread while the trainer goes on, and ends before the weights change.

The thread reads the trainer's own tensors. Only an optimizer step changes them, and the worker calls ``finish`` before
each optimizer step. ``begin`` collects these tensors in the thread that trains, and the publishing thread never looks
at the model: while a layer computes, FSDP2 has put other tensors in the place of its parameters.
"""

from __future__ import annotations

import collections
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext

import torch
from torch import Tensor

from tailrace.core.ids import Version
from tailrace.weights.channel import WeightSink
from tailrace.workers.link import Link
from tailrace.workers.messages import Published, Refused


class Publishing:
    """Owns the thread that publishes versions, one at a time."""

    def __init__(
        self,
        link: Link,
        sink: WeightSink | None,
        weights: Callable[[], Iterable[tuple[str, Tensor]]],
        *,
        model: str,
        device: torch.device,
        on_written: Callable[[], None] = lambda: None,
    ) -> None:
        """``sink``: None if another rank writes the channel; this one then gives its part of the weights.
        ``weights`` is called by ``begin``; the thread goes through what it returns.
        ``on_written`` is called in the thread when a version is written, before anybody is told."""
        self._on_written = on_written
        self._link, self._sink, self._weights, self._model = link, sink, weights, model
        # On the trainer's own stream, copies would wait for the kernels of the next step.
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="publishing")
        self._current: Future[None] | None = None

    def begin(self, version: Version) -> None:
        self.finish()
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))  # the step before is complete
        self._current = self._thread.submit(self._publish, version, self._weights())

    def finish(self) -> None:
        """Wait until the current publish, if any, has read all weights."""
        if self._current is not None:
            self._current.result()
            self._current = None

    def _publish(self, version: Version, weights: Iterable[tuple[str, Tensor]]) -> None:
        start = time.monotonic()
        try:
            with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
                if self._sink is None:
                    collections.deque(weights, maxlen=0)
                else:
                    self._sink.publish(version, weights)
            self._on_written()
        except Exception as error:  # noqa: BLE001  an error that is not reported would leave the run waiting
            traceback.print_exc()
            self._link.send(Refused(reason=f"version {version} could not be published: {error}"))
        else:
            self._link.send(Published(model=self._model, version=version, seconds=time.monotonic() - start))
