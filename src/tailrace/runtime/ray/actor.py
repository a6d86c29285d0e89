"""A worker as a Ray actor: what runs in the actor's process.

``run`` is a stream: it yields what the worker says, prints, and at last how it ended. The stream is the worker's link
to the controller. When the actor or its node dies, Ray ends the stream with an error. When the controller dies, Ray
ends the actor.

The worker's function runs in a thread of its own, not in the process's main thread, which belongs to Ray.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray

from tailrace.runtime.ray.kept import LinkClosed, ProcessEnded
from tailrace.runtime.ray.letters import Began, Heard, Letter, Printed, WorkerEnded, read, write
from tailrace.runtime.ray.output import CapturedOutput
from tailrace.weights.address import RAY_OBJECT_STORE
from tailrace.weights.more_kinds import MORE_KINDS, ChannelMaker
from tailrace.workers.entry import load_entry
from tailrace.workers.stop_signals import outlive_stop_signals

if TYPE_CHECKING:
    from tailrace.runtime.ray.weights import ObjectStoreSink, ObjectStoreSource, Publication
    from tailrace.weights.sharding.layout import WeightLayout
    from tailrace.workers.link import Link

INBOX = "inbox"
"""Name of the concurrency group that takes messages while the stream is open. One thread: they stay in order."""
WEIGHTS = "weights"
"""Name of the concurrency group that answers readers of the weight channel, while the worker is at work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the process of a worker must look like before the worker's function is imported."""

    env: Mapping[str, str]
    paths: tuple[str, ...]
    """Folders in which the controller finds modules."""
    directory: str
    """The controller's current directory, for relative paths."""
    controller_node: str | None = None
    """Id of the controller's node, if checkpoints must be copied there; None: the worker writes to the same files."""

    def enter(self) -> None:
        os.environ.update(self.env)
        sys.path += [path for path in self.paths if path not in sys.path]
        if os.path.isdir(self.directory):  # on another machine it may not exist
            os.chdir(self.directory)


class ActorLink:
    """The worker's end of its link."""

    def __init__(self, outbox: queue.SimpleQueue[Heard]) -> None:
        self._outbox = outbox
        self._inbox: queue.SimpleQueue[Letter | None] = queue.SimpleQueue()

    def put(self, letter: Letter | None) -> None:
        """Add a message from the controller; None: it has closed the link."""
        self._inbox.put(letter)

    def receive(self, timeout: float | None = None) -> object | None:
        try:
            letter = self._inbox.get(block=timeout != 0, timeout=timeout)
        except queue.Empty:
            return None
        if letter is None:
            self._inbox.put(None)  # whoever asks again hears it again
            raise LinkClosed
        return read(letter)

    def send(self, message: object) -> None:
        self._outbox.put(write(message))


class WorkerActor:
    """Owns the thread of one worker."""

    def __init__(self, name: str, surroundings: Surroundings) -> None:
        self._name = name
        self._outbox: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        self._link = ActorLink(self._outbox)
        self._output: CapturedOutput | None = None
        self._sink: ObjectStoreSink | None = None
        self._controller_node = surroundings.controller_node
        surroundings.enter()
        outlive_stop_signals()
        MORE_KINDS[RAY_OBJECT_STORE] = ChannelMaker(create=self._create_sink, open=_open_source)

    def __repr__(self) -> str:
        return self._name  # Ray's tools show it

    @ray.method(num_returns="streaming")
    def run(self, entry: str, init: Letter) -> Iterator[list[Heard]]:
        self._outbox.put(Began(ray.util.get_node_ip_address(), os.getpid()))
        threading.Thread(target=self._work, args=(entry, init), name=self._name, daemon=True).start()
        while True:
            heard = self._next()
            yield heard
            if isinstance(heard[-1], WorkerEnded):
                return

    @ray.method(concurrency_group=INBOX)
    def put(self, letter: Letter) -> None:
        self._link.put(letter)

    @ray.method(concurrency_group=INBOX)
    def close(self) -> None:
        """End the stream, whatever the worker is doing, when all that it has printed is told. The controller then ends
        the process."""
        self._link.put(None)
        if self._output is not None:
            self._output.drain()
        self._outbox.put(WorkerEnded(None))

    @ray.method(concurrency_group=WEIGHTS)
    def weight_layout(self) -> WeightLayout:
        assert self._sink is not None, "readers get the address from the sink"
        return self._sink.layout

    @ray.method(concurrency_group=WEIGHTS)
    def newest_weights(self) -> Publication | None:
        """References to the newest version that this worker has published."""
        assert self._sink is not None, "readers get the address from the sink"
        return self._sink.newest()

    def _create_sink(self, run: str, layout: WeightLayout) -> ObjectStoreSink:
        from tailrace.runtime.ray.weights import ObjectStoreSink  # imports torch, which a reward worker does not need

        self._sink = ObjectStoreSink(layout)
        return self._sink

    def _next(self) -> list[Heard]:
        """Wait for something to tell, and return all that there is, up to the end."""
        heard = [self._outbox.get()]
        while not isinstance(heard[-1], WorkerEnded) and not self._outbox.empty():
            heard.append(self._outbox.get())
        return heard

    def _work(self, entry: str, init: Letter) -> None:
        output, error = CapturedOutput(lambda data: self._outbox.put(Printed(data))), None
        self._output = output
        try:
            load_entry(entry)(*self._furnished(read(init)))
        except LinkClosed:
            pass
        except ProcessEnded as ended:
            error = str(ended)
        except BaseException as raised:  # noqa: BLE001  whatever ends the thread is the end of the worker
            traceback.print_exc()
            error = f"{type(raised).__name__}: {raised}"
        output.close()
        self._outbox.put(WorkerEnded(error))

    def _furnished(self, init: Any) -> tuple[Link, Any]:
        """The link and the first message of the worker's function."""
        node = self._controller_node
        if node is None or node == ray.get_runtime_context().get_node_id():
            return self._link, init
        from tailrace.runtime.ray.checkpoints import Courier, GatheringLink  # only training workers need it

        link = GatheringLink(self._link, Courier(node), init)
        return link, link.fetched(init)


def _open_source(location: str) -> ObjectStoreSource:
    from tailrace.runtime.ray.weights import ObjectStoreSource  # imports torch, which a reward worker does not need

    return ObjectStoreSource(location)
