"""Calls that another thread has for an event loop, all of them in one callback: waking the loop costs more than most.

Each call is as safe as a callback of its own: what one raises goes to the loop's exception handler, and the others are
made all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

Call = tuple[Callable[[Any], object], object]
"""A function and its argument."""


def call_from_thread(loop: asyncio.AbstractEventLoop, calls: Sequence[Call]) -> None:
    """Make the calls in the loop's thread, in this order and after those of earlier calls of this function."""
    if calls:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            loop.call_soon_threadsafe(_make_all, loop, calls)


def _make_all(loop: asyncio.AbstractEventLoop, calls: Sequence[Call]) -> None:
    for function, argument in calls:
        try:
            function(argument)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001  the handler decides, as for any callback
            loop.call_exception_handler({"message": f"{function!r} failed: {error!r}", "exception": error})
