"""The output of an actor's process: what is printed goes where Ray writes it, and to the controller too."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

_LAST_WORDS_S = 1.0


class Output:
    """Takes over standard output and error of this process, also of code that is not Python."""

    def __init__(self, tell: Callable[[bytes], None]) -> None:
        self._tell = tell
        self._before = [(number, os.dup(number)) for number in (1, 2)]
        self._end, write_end = os.pipe()
        for number, _ in self._before:
            os.dup2(write_end, number)
        os.close(write_end)
        self._python = (sys.stdout, sys.stderr)
        sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
        self._reader = threading.Thread(target=self._read, name="output", daemon=True)
        self._reader.start()

    def close(self) -> None:
        """Give both back, and tell what was printed before. A child that holds them is not waited for."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = self._python
        for number, before in self._before:
            os.dup2(before, number)
        self._reader.join(_LAST_WORDS_S)

    def _read(self) -> None:
        where_ray_writes = self._before[0][1]
        while data := os.read(self._end, 65536):
            self._tell(data)
            os.write(where_ray_writes, data)
