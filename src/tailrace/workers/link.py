"""A worker's end of its link to the controller. ``ProcessLink`` is the link of a worker process.

    link = connect()
    init = link.receive()              # the first message, chosen by whoever started the process
    link.send(Ready())

* Messages are small pickled objects; they arrive in the order sent. Weights never travel here.
* A worker process never outlives its controller. When the link ends, the process ends at once, whatever its main thread
  is doing. On Linux the kernel sees to it, through a pipe (the *lifeline*) whose other end only the controller
  holds: the worker's whole process group is killed even while stuck in C code. The keeper (`workers/keeper.py`) kills
  whatever else the worker has started.
* Nothing of the link is inherited by the worker's own children.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import queue
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Protocol

from tailrace.workers.keeper import LIFELINE_VARIABLE, LINK_VARIABLE

_F_SETSIG = 10  # Linux; the fcntl module of Python 3.11 does not name it
_SIGKILL = 9
_EXIT_UNREADABLE_MESSAGE = 70


class Link(Protocol):
    """A worker's connection to its controller."""

    def receive(self, timeout: float | None = None) -> object | None:
        """Return the next message; None if none arrives within `timeout` seconds (0: do not wait, None: no limit)."""
        ...

    def send(self, message: object) -> None: ...


class ProcessLink:
    """Owns the connection and the thread that reads it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._sending = threading.Lock()
        threading.Thread(target=self._read, name="link", daemon=True).start()

    def receive(self, timeout: float | None = None) -> object | None:
        try:
            return self._inbox.get(block=timeout != 0, timeout=timeout)
        except queue.Empty:
            return None

    def send(self, message: object) -> None:
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        with self._sending:
            self._connection.send_bytes(data)

    def _read(self) -> None:
        while True:
            try:
                data = self._connection.recv_bytes()
            except (EOFError, OSError):
                os._exit(0)
            try:
                self._inbox.put(pickle.loads(data))
            except BaseException:  # noqa: BLE001  unpickling may raise anything, and the main thread would wait for ever
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(_EXIT_UNREADABLE_MESSAGE)


def connect() -> ProcessLink:
    """Return the link of this process, from the descriptors it inherited from its controller. Call it once."""
    descriptor = os.environ.pop(LINK_VARIABLE, None)
    if descriptor is None:
        raise RuntimeError(f"{LINK_VARIABLE} is not set: a worker is started by its controller, not by hand")
    _hold_lifeline(os.environ.pop(LIFELINE_VARIABLE, None))
    os.set_inheritable(int(descriptor), False)
    return ProcessLink(Connection(int(descriptor)))


def _hold_lifeline(descriptor: str | None) -> None:
    """Ask the kernel to kill our process group when the controller's end of the lifeline closes."""
    if descriptor is None:
        return
    lifeline = int(descriptor)
    os.set_inheritable(lifeline, False)
    if sys.platform != "linux" or os.getpgrp() != os.getpid():
        return  # elsewhere the end of the link ends us, as soon as Python code can run
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, _F_SETSIG, _SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
