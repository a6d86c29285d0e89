"""Work that is too slow for the event loop: disk, pickling, text. One thread, one job after the other.

    work = WorkThread("payload")
    work.do(lambda: store.append(segments), then=lambda _: post(event))

* Jobs run in the order given, and ``then`` is called in the event loop's thread, in the same order: what is done about
  one job never overtakes an earlier one.
* Jobs given in one turn of the event loop are handed over together, and what is done about them is done in one turn:
  waking a thread or the loop costs more than most jobs.
* A job that raises goes to the loop's exception handler, like a callback that raises; its ``then`` is not called.
* ``close`` does not wait for ever: a job that hangs, for example in a network file system, is left behind.
* A queue and a callback, not an executor: its futures cost more than most jobs, and a large run has thousands a minute.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from tailrace.runtime.threads.loop_calls import Call, call_from_thread

T = TypeVar("T")
CLOSE_LIMIT_S = 60.0
"""Seconds that ``close`` waits for the current job."""
_Job = tuple[Callable[[], Any], Callable[[Any], object] | None]
"""A job, and what is called with its result."""


class WorkThread:
    """Owns the thread. Make it, and call it, in one event loop."""

    def __init__(self, name: str) -> None:
        self._given: list[_Job] = []
        """Jobs of this turn of the event loop."""
        self._jobs: queue.SimpleQueue[list[_Job] | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self._asked: set[asyncio.Future[Any]] = set()
        """Questions without an answer yet."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def do(self, job: Callable[[], T], then: Callable[[T], object] | None = None) -> None:
        """Queue a job; ``then`` gets what it returns."""
        if self._is_closed:
            raise RuntimeError(f"the thread {self._thread.name!r} is closed")
        if not self._given:
            self._loop.call_soon(self._hand_over)
        self._given.append((job, then))

    async def ask(self, question: Callable[[], T]) -> T:
        """Return the result of ``question``, which runs in the thread after the jobs queued before it. What it raises
        is raised here."""
        answer: asyncio.Future[T] = self._loop.create_future()
        self._asked.add(answer)
        answer.add_done_callback(self._asked.discard)
        self.do(lambda: _outcome(question), then=lambda outcome: _settle(answer, *outcome))
        self._hand_over()  # somebody waits for it
        return await answer

    def close(self, limit_s: float = CLOSE_LIMIT_S) -> str | None:
        """Finish the current job, drop the queued ones, and end the thread. A job that takes longer than ``limit_s`` is
        left behind: return a sentence about it, else None."""
        self._is_closed = True
        self._jobs.put(None)
        self._thread.join(limit_s)
        for answer in list(self._asked):
            answer.cancel()
        if not self._thread.is_alive():
            return None
        return f"the thread '{self._thread.name}' did not end within {limit_s:g} s and is left behind: its job hangs"

    def _hand_over(self) -> None:
        if self._given:
            self._jobs.put(self._given)
            self._given = []

    def _run(self) -> None:
        while (jobs := self._jobs.get()) is not None:
            calls: list[Call] = []
            for job, then in jobs:
                if self._is_closed:
                    break
                try:
                    result = job()
                except BaseException as error:  # noqa: BLE001  a job may raise anything, and the loop must hear of it
                    calls.append((_raise, error))
                else:
                    if then is not None:
                        calls.append((then, result))
            call_from_thread(self._loop, calls)


def _raise(error: BaseException) -> None:
    raise error


def _outcome(question: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    try:
        return question(), None
    except BaseException as error:  # noqa: BLE001  whoever asked gets it, whatever it is
        return None, error


def _settle(answer: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if answer.done():
        return  # nobody waits for it any more
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)
