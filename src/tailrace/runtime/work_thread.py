"""Work that is too slow for the event loop: disk, pickling, text. One thread, one job after the other.

    work = WorkThread("payload")
    work.do(lambda: store.append(segments), then=lambda _: post(event))

* Jobs run in the order given, and ``then`` is called in the event loop's thread, in the same order: what is done about
  one job never overtakes an earlier one.
* A job that raises goes to the loop's exception handler, like a callback that raises; its ``then`` is not called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class WorkThread:
    """Owns the thread. Make it, and call it, in one event loop."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._loop = asyncio.get_running_loop()

    def do(self, job: Callable[[], T], then: Callable[[T], object] | None = None) -> None:
        """Queue a job; ``then`` gets what it returns."""

        def finish(future: asyncio.Future[T]) -> None:
            if future.cancelled():
                return  # the thread was closed before this job
            result = future.result()
            if then is not None:
                then(result)

        self._loop.run_in_executor(self._executor, job).add_done_callback(finish)

    async def ask(self, question: Callable[[], T]) -> T:
        """Return the result of ``question``, which runs in the thread after the jobs queued before it."""
        return await self._loop.run_in_executor(self._executor, question)

    def close(self) -> None:
        """Finish the current job, drop the queued ones, and end the thread."""
        self._executor.shutdown(wait=True, cancel_futures=True)
