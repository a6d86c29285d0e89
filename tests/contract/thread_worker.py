"""Workers as threads of this process, for fast tests. `runtime/launchers/worker.py` says what every worker does.

A thread cannot be ended from outside. A killed one is cut off instead: nothing it says is delivered any more, and its
next use of the link ends it. Threads share one environment, so `WorkerSpec.env` has no effect here; a worker that
changes its process (a memory limit, a number of threads) changes ours.
"""

from __future__ import annotations

import pickle
import queue
import threading
import traceback
from collections.abc import Callable

from tailrace.runtime.launchers.delivery import Delivery
from tailrace.runtime.launchers.worker import Hear, Lose, WorkerHandle, WorkerSpec
from tailrace.workers.entry import load_entry


class LinkClosed(BaseException):
    """The controller has closed the link. Like `SystemExit`, no worker is meant to catch it."""


class ThreadLink:
    """The worker's end: two queues of pickled messages."""

    def __init__(self, deliver: Callable[[bytes], None]) -> None:
        self._deliver = deliver
        self._inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._is_cut = threading.Event()

    def put(self, message: object) -> None:
        self._inbox.put(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))

    def close(self) -> None:
        """Close the link. Messages that were sent before are still received."""
        self._inbox.put(None)

    def cut(self) -> None:
        """Cut the link at once: nothing more is received or delivered."""
        self._is_cut.set()
        self._inbox.put(None)

    def receive(self, timeout: float | None = None) -> object | None:
        self._refuse_if_cut()
        try:
            data = self._inbox.get(block=timeout != 0, timeout=timeout)
        except queue.Empty:
            return None
        self._refuse_if_cut()
        if data is None:
            self._inbox.put(None)  # whoever asks again hears it again
            raise LinkClosed
        message: object = pickle.loads(data)
        return message

    def send(self, message: object) -> None:
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        self._refuse_if_cut()
        self._deliver(data)

    def _refuse_if_cut(self) -> None:
        if self._is_cut.is_set():
            raise LinkClosed


class WorkerThread:
    """Owns one thread and its link. Use it from the event loop that started it."""

    def __init__(self, spec: WorkerSpec, *, hear: Hear, lose: Lose) -> None:
        self.name = spec.name
        self._spec = spec
        self._delivery = Delivery(hear=hear, lose=lose)
        self._link = ThreadLink(self._read)
        threading.Thread(target=self._work, name=spec.name, daemon=True).start()

    @property
    def is_alive(self) -> bool:
        return not self._delivery.is_ended

    def send(self, message: object) -> None:
        self._link.put(message)

    def kill(self) -> None:
        self._end(f"worker {self.name!r} was killed")

    async def stop(self, grace_s: float = 5.0) -> None:
        self._delivery.silence()
        self._link.close()
        if not await self._delivery.wait(grace_s):
            self.kill()
            await self._delivery.wait()

    def _work(self) -> None:
        reason = f"worker {self.name!r} ended"
        try:
            # Pickled like every message: the worker must not share it with the controller.
            init = pickle.loads(pickle.dumps(self._spec.init))
            load_entry(self._spec.entry)(self._link, init)
        except LinkClosed:
            pass
        except BaseException as error:  # noqa: BLE001  whatever ends the thread is the end of the worker
            traceback.print_exc()
            reason += f": {type(error).__name__}: {error}"
        self._end(reason)

    def _read(self, data: bytes) -> None:
        try:
            message = pickle.loads(data)
        except Exception as error:  # noqa: BLE001  unpickling runs any code, so it may raise anything
            self._end(f"worker {self.name!r} sent a message that cannot be read: {error!r}")
        else:
            self._delivery.message(message)

    def _end(self, reason: str) -> None:
        self._link.cut()
        self._delivery.end(reason)


class ThreadLauncher:
    shares_files = True

    def __call__(self, spec: WorkerSpec, *, hear: Hear, lose: Lose) -> WorkerHandle:
        return WorkerThread(spec, hear=hear, lose=lose)
