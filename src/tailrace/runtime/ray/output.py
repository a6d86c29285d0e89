"""The output of an actor's process: what is printed goes where Ray writes it, and to the controller too.

When `drain` or `close` returns, all that was printed before the call has been told.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import sys
import termios
import threading
from collections.abc import Callable

_READ_BYTES = 65536


class CapturedOutput:
    """Takes over standard output and error of this process, also of code that is not Python."""

    def __init__(self, tell: Callable[[bytes], None]) -> None:
        self._tell = tell
        self._before = [(number, os.dup(number)) for number in (1, 2)]
        self._end, write_end = os.pipe()
        os.set_blocking(self._end, False)
        for number, _ in self._before:
            os.dup2(write_end, number)
        os.close(write_end)
        self._python = (sys.stdout, sys.stderr)
        sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
        self._reading = threading.Lock()
        """Held from reading until the data is told, so that data is told in order."""
        threading.Thread(target=self._read_all, name="output", daemon=True).start()

    def drain(self) -> None:
        """Tell all that was printed before. A child that goes on printing is not waited for."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        with self._reading:
            num_waiting = array.array("i", [0])
            fcntl.ioctl(self._end, termios.FIONREAD, num_waiting)
            while num_waiting[0] > 0:
                num_waiting[0] -= self._read(num_waiting[0])

    def close(self) -> None:
        """Give both back, after all that was printed before was told."""
        self.drain()
        sys.stdout, sys.stderr = self._python
        for number, before in self._before:
            os.dup2(before, number)
        self.drain()

    def _read_all(self) -> None:
        is_open = True
        while is_open:
            select.select([self._end], [], [])
            with self._reading:
                try:
                    is_open = self._read(_READ_BYTES) > 0
                except BlockingIOError:  # `drain` was quicker
                    continue

    def _read(self, most: int) -> int:
        """Tell some of what waits. Return the number of bytes; 0 when nobody can print any more."""
        data = os.read(self._end, most)
        if data:
            self._tell(data)
            os.write(self._before[0][1], data)
        return len(data)
