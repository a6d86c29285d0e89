"""Programs on a real terminal: a pseudo-terminal of this machine."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

CONTROL_C = b"\x03"
LIMIT_S = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    code: int
    """Exit status; negative: the signal that ended it."""
    shown: str
    """All that it wrote to the terminal."""


def run(command: Sequence[str], *, press: bytes = b"", when: Callable[[], bool] = lambda: False) -> Ended:
    """Run a command on a terminal of its own. Once ``when`` says so, the keys ``press`` are pressed, once."""
    process, terminal = pty.fork()
    if process == 0:
        os.execvpe(command[0], list(command), {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"})
    shown, is_pressed, deadline = b"", False, time.monotonic() + LIMIT_S
    try:
        with contextlib.suppress(OSError):  # Linux tells the end of the other side by an error
            while time.monotonic() < deadline:
                if select.select([terminal], [], [], 0.05)[0]:
                    if not (part := os.read(terminal, 65536)):
                        break
                    shown += part
                if not is_pressed and when():
                    is_pressed = True
                    os.write(terminal, press)
            else:
                os.kill(process, signal.SIGKILL)
    finally:
        os.close(terminal)
    _, status = os.waitpid(process, 0)
    return Ended(code=os.waitstatus_to_exitcode(status), shown=shown.decode("utf-8", errors="replace"))
