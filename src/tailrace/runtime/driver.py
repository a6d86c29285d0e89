"""Run a machine in real time: the only owner of the clock.

    inbox --> stamp once --> machine.handle --> record (journal) --> perform each command
      ^                                                                   |
      +------------------------- events, whenever they come --------------+

An entry is recorded before its commands are performed, so whatever happens afterwards, the journal knows why.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from tailrace.core.commands import Command, FinishRun, SetTimer
from tailrace.core.events import Event, TimerFired
from tailrace.core.journal import Entry, Machine


class Driver:
    def __init__(
        self,
        machine: Machine,
        *,
        perform: Callable[[Command], None],
        record: Callable[[Entry], None],
        start_at: float = 0.0,
    ) -> None:
        self._machine, self._perform, self._record = machine, perform, record
        self._inbox: asyncio.Queue[Event | Exception] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._origin = self._loop.time() - start_at
        self._timer: asyncio.TimerHandle | None = None

    def now(self) -> float:
        """Seconds of run time; goes on where an earlier part of the run ended."""
        return round(self._loop.time() - self._origin, 6)

    def post(self, event: Event) -> None:
        """Something has happened. Call it from the event loop's thread."""
        self._inbox.put_nowait(event)

    def fail(self, error: Exception) -> None:
        """An adapter broke in a way no event describes: end ``run`` with its error."""
        self._inbox.put_nowait(error)

    async def run(self, first: Event) -> FinishRun:
        """Handle events until the machine says that the run is over."""
        self.post(first)
        while True:
            event = await self._inbox.get()
            if isinstance(event, Exception):
                raise event
            if (finish := self._handle(event)) is not None:
                return finish

    def _handle(self, event: Event) -> FinishRun | None:
        now, start_s = self.now(), time.thread_time()
        commands = self._machine.handle(event, now=now)
        decided_s = round(time.thread_time() - start_s, 6)
        self._record(Entry(now=now, event=event, commands=tuple(commands), decided_s=decided_s))
        finish = None
        for command in commands:
            match command:
                case FinishRun():
                    finish = command
                case SetTimer(at=at):
                    self._set_timer(at)
                case _:
                    self._perform(command)
        return finish

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._origin + at, self.post, TimerFired())
