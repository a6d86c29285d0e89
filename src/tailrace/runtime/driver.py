"""Run a machine in real time: the only owner of the clock.

    inbox --> stamp once --> machine.handle --> record (journal) --> perform each command
      ^       [............. a thread of its own ..............]             |
      +------------------------- events, whenever they come ----------------+

* An entry is recorded before its commands are performed, so the journal contains the cause of everything that happens.
* Deciding and recording never block the event loop: a thread does both, one event at a time. To read the state of the
  machine, use ``ask``: it runs in that thread, between two events.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from tailrace.core.commands import Command, FinishRun, SetTimer
from tailrace.core.events import Event, TimerFired
from tailrace.core.journal import Entry, Machine
from tailrace.runtime.work_thread import WorkThread

T = TypeVar("T")


class Driver:
    def __init__(
        self,
        machine: Machine,
        *,
        perform: Callable[[Command], Awaitable[None] | None],
        record: Callable[[Entry], None],
        start_at: float = 0.0,
    ) -> None:
        """``perform`` is called in the event loop's thread. If it returns an awaitable, no other command is performed
        and no event handled until that is done. ``record`` is called in the thread that decides."""
        self._machine, self._perform, self._record = machine, perform, record
        self._inbox: asyncio.Queue[Event | Exception] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._thread = WorkThread("decide")
        self._origin = self._loop.time() - start_at
        self._timer: asyncio.TimerHandle | None = None

    def now(self) -> float:
        """Return the seconds of run time. A resumed run continues from where its earlier part ended."""
        return round(self._loop.time() - self._origin, 6)

    def post(self, event: Event) -> None:
        """Deliver an event. Call it from the event loop's thread."""
        self._inbox.put_nowait(event)

    def fail(self, error: Exception) -> None:
        """End ``run`` with an error of an adapter that no event describes."""
        self._inbox.put_nowait(error)

    def post_from_thread(self, event: Event) -> None:
        """``post`` for every other thread."""
        self._loop.call_soon_threadsafe(self.post, event)

    async def ask(self, question: Callable[[], T]) -> T:
        """Return the result of ``question``, which may read the machine and its records. It runs between two events."""
        return await self._thread.ask(question)

    async def run(self, first: Event) -> FinishRun:
        """Handle events until the machine ends the run. Call it once."""
        self.post(first)
        try:
            while True:
                event = await self._inbox.get()
                if isinstance(event, Exception):
                    raise event
                entry = await self.ask(partial(self._decide, event))
                if (finish := await self._perform_all(entry)) is not None:
                    return finish
        finally:
            self._thread.close()

    def _decide(self, event: Event) -> Entry:
        now, start_s = self.now(), time.thread_time()
        commands = self._machine.handle(event, now=now)
        decided_s = round(time.thread_time() - start_s, 6)
        entry = Entry(now=now, event=event, commands=tuple(commands), decided_s=decided_s)
        self._record(entry)
        return entry

    async def _perform_all(self, entry: Entry) -> FinishRun | None:
        finish = None
        for command in entry.commands:
            match command:
                case FinishRun():
                    finish = command
                case SetTimer(at=at):
                    self._set_timer(at)
                case _:
                    if (done := self._perform(command)) is not None:
                        await done
        return finish

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._origin + at, self.post, TimerFired())
