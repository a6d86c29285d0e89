"""Brings what a worker says, and its end, to the event loop that started it. `worker.py` says what is promised.

Whoever hears the worker may be in any thread. Messages reach `hear` in their order; `lose` is called once, behind them.
"""

from __future__ import annotations

import asyncio

from tailrace.runtime.launchers.worker import Hear, Lose
from tailrace.runtime.threads.loop_calls import call_from_thread


class Delivery:
    """Owned by a worker's handle. Make it in the event loop."""

    def __init__(self, *, hear: Hear, lose: Lose) -> None:
        self._hear, self._lose = hear, lose
        self.loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self.loop.create_future()
        self._is_silent = False

    @property
    def is_ended(self) -> bool:
        """Whether the end has been delivered."""
        return self._ended.done()

    def message(self, message: object) -> None:
        """Deliver a message, from any thread."""
        call_from_thread(self.loop, [(self.deliver, message)])

    def end(self, reason: str) -> None:
        """Deliver the end of the worker, from any thread. Nothing is delivered behind it, nor a second end."""
        call_from_thread(self.loop, [(self.finish, reason)])

    def deliver(self, message: object) -> None:
        """Like ``message``, in the event loop's own thread."""
        if not (self._is_silent or self.is_ended):
            self._hear(message)

    def finish(self, reason: str) -> None:
        """Like ``end``, in the event loop's own thread."""
        if self.is_ended:
            return
        self._ended.set_result(None)
        if not self._is_silent:
            self._lose(reason)

    def silence(self) -> None:
        """Deliver nothing any more."""
        self._is_silent = True

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the worker; return whether it has ended."""
        await asyncio.wait([self._ended], timeout=timeout_s)
        return self._ended.done()
