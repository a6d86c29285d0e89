"""Signals by which a run is asked to stop: Ctrl-C, and those of Slurm and systemd, which signal every process of a run.

The controller heeds them. A worker outlives them until the controller ends it or the link closes, because it may have
to end a step and to write a checkpoint first.

* A worker notes that one has come (``has_stop_signal_come``): programs that it waits for may have been ended by it.
* A worker handles them and does not ignore them, because a program that it starts would ignore them too.
* A process that a worker forks treats them as if they had never been handled: its parent may end it by SIGTERM.
* A worker starts with the signals blocked: one that comes before it can handle them waits until then.
* A signal that is ignored already (``nohup``) stays ignored, in the controller as in workers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from tailrace.workers.keeper import STOP_SIGNALS


@contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Block the signals in this thread. A worker that is started meanwhile has them blocked until it handles them, so
    none of them ends it before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock_stop_signals() -> None:
    """Let the signals reach this process, which was started while they were blocked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


_signals_seen: list[int] = []
"""Numbers of the signals that have come. A list, because a handler may interrupt a thread that holds a lock."""


def outlive_stop_signals() -> None:
    """Let this process outlive the signals. It has no effect outside the main thread, where none can be handled."""
    handled = _possible()
    for number in handled:
        signal.signal(number, _note)

    def restore() -> None:
        for number, action in handled.items():
            signal.signal(number, signal.SIG_DFL if action is None else action)

    os.register_at_fork(after_in_child=restore)


def has_stop_signal_come() -> bool:
    """Whether one of the signals has come since this process outlives them."""
    return bool(_signals_seen)


def _note(number: int, frame: FrameType | None) -> None:
    _signals_seen.append(number)


def heed_stop_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[int], None]) -> None:
    """Call ``stop`` in the event loop with the number of every such signal. No effect outside the main thread."""
    for number in _possible():
        loop.add_signal_handler(number, stop, number)


def _possible() -> dict[signal.Signals, Callable[[int, FrameType | None], Any] | int | signal.Handlers | None]:
    """What is done at present about each signal that can be handled here."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    found = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    return {number: action for number, action in found.items() if action is not signal.SIG_IGN}
