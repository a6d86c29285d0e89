"""One thread reads the links of many workers, and wakes the event loop once for all that has come.

    worker 0 --.
    worker 1 ---+-- wait, read all that is there, unpickle --> one call in the event loop --> pause --> wait ...
    worker 2 --'

A thread that is woken pays for the wake-up, for the GIL and for cold caches: for short messages that is most of their
cost. So after each reading the thread may pause, and what comes meanwhile is read together. The first message after a
quiet time is not delayed.

* Messages of a link are delivered in the order sent, and all of them before its end.
* There is no pause while a message is incomplete, because its sender waits until all of it is read.
* The thread ends with its last link, and begins again with the next one.
"""

from __future__ import annotations

import asyncio
import pickle
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tailrace.runtime.threads.loop_calls import Call, call_from_thread

_READ_BYTES = 65536
_MOST_READS = 64
"""Reads of one link before others have their turn."""
_SIZE, _LONG_SIZE = struct.Struct("!i"), struct.Struct("!Q")
_IS_LONG = -1
"""The size of a message that is too long for 4 bytes: another 8 bytes follow. So does ``multiprocessing.Connection``,
which writes the messages."""


@dataclass(slots=True, kw_only=True, eq=False)
class ReadLink:
    """One link: its socket, and what is told about it in the event loop's thread."""

    end: socket.socket
    loop: asyncio.AbstractEventLoop
    hear: Callable[[object], None]
    close: Callable[[str | None], None]
    """Called once, after the last message: with None at the end of the link, else with why a message is unreadable."""
    is_read: threading.Event = field(default_factory=threading.Event)
    """Set when everything was handed to the event loop and the socket is not used any more."""
    rest: bytearray = field(default_factory=bytearray)
    """The beginning of a message."""


class LinkReader:
    """Owns the thread. Any thread may add links."""

    def __init__(self, pause_s: float = 0.0, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._pause_s, self._sleep = pause_s, sleep
        self._selector = selectors.DefaultSelector()
        self._changing = threading.Lock()
        self._is_running = False

    def add(self, link: ReadLink) -> None:
        with self._changing:
            self._selector.register(link.end, selectors.EVENT_READ, link)
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="links-reader", daemon=True).start()

    def _run(self) -> None:
        while self._has_links():
            links: list[ReadLink] = [key.data for key, _ in self._selector.select()]
            calls: dict[asyncio.AbstractEventLoop, list[Call]] = {}
            ended = [link for link in links if not self._read(link, calls.setdefault(link.loop, []))]
            for loop, found in calls.items():
                call_from_thread(loop, found)
            for link in ended:
                link.is_read.set()
            if self._pause_s and not any(link.rest for link in links):
                self._sleep(self._pause_s)

    def _has_links(self) -> bool:
        with self._changing:
            self._is_running = bool(self._selector.get_map())
            return self._is_running

    def _read(self, link: ReadLink, calls: list[Call]) -> bool:
        """Append the calls that what has come leads to. Return whether the link goes on."""
        problem = None
        is_open = _receive(link)
        try:
            for message in _messages(link.rest):
                calls.append((link.hear, message))
        except Exception as error:  # noqa: BLE001  unpickling runs any code, so it may raise anything
            is_open, problem = False, repr(error)
        if not is_open:
            with self._changing:
                self._selector.unregister(link.end)
            link.rest.clear()
            calls.append((link.close, problem))
        return is_open


def _receive(link: ReadLink) -> bool:
    """Read what is there, without waiting. Return False at the end of the link."""
    for _ in range(_MOST_READS):
        try:
            data = link.end.recv(_READ_BYTES, socket.MSG_DONTWAIT)  # the socket itself blocks: it is also written to
        except BlockingIOError:
            return True
        except OSError:
            return False
        link.rest += data
        if len(data) < _READ_BYTES:
            return bool(data)
    return True


def _messages(data: bytearray) -> Iterator[object]:
    """Remove complete messages from the front of ``data`` and return them."""
    start = 0
    while (span := _span(data, start)) is not None and span.stop <= len(data):
        yield pickle.loads(data[span])
        start = span.stop
    del data[:start]


def _span(data: bytearray, start: int) -> slice | None:
    """Return where the message is whose size stands at ``start``; None if its size is not there yet."""
    begin = start + _SIZE.size
    if len(data) < begin:
        return None
    (size,) = _SIZE.unpack_from(data, start)
    if size == _IS_LONG:
        if len(data) < begin + _LONG_SIZE.size:
            return None
        (size,) = _LONG_SIZE.unpack_from(data, begin)
        begin += _LONG_SIZE.size
    return slice(begin, begin + size)
