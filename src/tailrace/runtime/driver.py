"""Run a machine in real time: the only owner of the clock.

    inbox --> stamp once --> machine.handle --> record (journal) --> perform each command
      ^       [............. a thread of its own ..............]             |
      +------------------------- events, whenever they come ----------------+

* An entry is recorded before its commands are performed, so the journal contains the cause of everything that happens.
* Deciding and recording never block the event loop: a thread does both. To read the state of the machine, use ``ask``:
  it runs in that thread, between two events.
* Events that wait together are decided one after the other in one visit of that thread, and recorded together: waking
  a thread costs more than most decisions.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import TypeVar

from tailrace.core.commands import Command, FinishRun, SaveCheckpoint, SetTimer
from tailrace.core.events import Event, TimerFired
from tailrace.core.journal import Decider, Entry
from tailrace.runtime.threads.work_thread import CLOSE_LIMIT_S, WorkThread

T = TypeVar("T")

_BEFORE_OTHERS = (SaveCheckpoint, FinishRun)
"""Commands that are performed before another event is decided: a checkpoint holds the state that asked for it."""


class Driver:
    def __init__(
        self,
        machine: Decider,
        *,
        perform: Callable[[Command], Awaitable[None] | None],
        record: Callable[[Sequence[Entry]], None],
        warn: Callable[[str], object],
        start_at: float = 0.0,
        close_limit_s: float = CLOSE_LIMIT_S,
    ) -> None:
        """``perform`` is called in the event loop's thread. If it returns an awaitable, no other command is performed
        until that is done. ``record`` is called in the thread that decides, with entries in their order. ``warn`` gets
        a sentence for the user if that thread hangs when the run ends, and is left behind after ``close_limit_s``."""
        self._machine, self._perform, self._record = machine, perform, record
        self._warn, self._close_limit_s = warn, close_limit_s
        self._inbox: deque[Event | Exception] = deque()
        self._has_come = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._thread = WorkThread("decide")
        self._origin = self._loop.time() - start_at
        self._timer: asyncio.TimerHandle | None = None

    def now(self) -> float:
        """Return the seconds of run time. A resumed run continues from where its earlier part ended."""
        return round(self._loop.time() - self._origin, 6)

    def post(self, event: Event) -> None:
        """Deliver an event. Call it from the event loop's thread."""
        self._put(event)

    def fail(self, error: Exception) -> None:
        """End ``run`` with an error of an adapter that no event describes."""
        self._put(error)

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
                events = await self._waiting()
                entries = await self.ask(partial(self._decide, events))
                for _ in entries:
                    self._inbox.popleft()
                if (finish := await self._perform_all(entries)) is not None:
                    return finish
        finally:
            if (problem := self._thread.close(self._close_limit_s)) is not None:
                self._warn(problem)

    def _put(self, item: Event | Exception) -> None:
        self._inbox.append(item)
        self._has_come.set()

    async def _waiting(self) -> list[Event]:
        """Return the events in the inbox, at least one. Raise an error when it is the first there."""
        if not self._inbox:
            self._has_come.clear()
            await self._has_come.wait()
        if isinstance(first := self._inbox[0], Exception):
            raise first
        events: list[Event] = []
        for item in self._inbox:
            if isinstance(item, Exception):
                break
            events.append(item)
        return events

    def _decide(self, events: Iterable[Event]) -> list[Entry]:
        """Decide and record events, all of them or up to one with a command that must be performed first."""
        entries: list[Entry] = []
        try:
            for event in events:
                entries.append(self._answer(event))
                if any(isinstance(command, _BEFORE_OTHERS) for command in entries[-1].commands):
                    break
        finally:  # also if the machine raises: the journal shows what came before
            self._record(entries)
        return entries

    def _answer(self, event: Event) -> Entry:
        now, start_s = self.now(), time.thread_time()
        commands = self._machine.handle(event, now=now)
        decided_s = round(time.thread_time() - start_s, 6)
        return Entry(now=now, event=event, commands=tuple(commands), decided_s=decided_s)

    async def _perform_all(self, entries: Iterable[Entry]) -> FinishRun | None:
        finish = None
        for command in chain.from_iterable(entry.commands for entry in entries):
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
