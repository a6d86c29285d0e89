"""Run a coordinator in virtual time: the simulated counterpart of ``runtime.driver``.

    agenda (heap of time, sequence, what) --> now := time --> coordinator.handle --> record --> world.perform
       ^                                                                                            |
       +------------------------------ what will happen, and when ----------------------------------+

Nothing but the agenda moves the clock, so a run is a function of its coordinator and its world.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol

from tailrace.core.commands import Command, FinishRun, SetTimer
from tailrace.core.coordinator import Coordinator
from tailrace.core.events import Event, TimerFired
from tailrace.core.journal import Entry

Action = Callable[[], None]


class Deadlock(RuntimeError):
    """The run is not over, but no further event is scheduled."""


class Agenda:
    """Owns virtual time. A world uses ``at`` and ``post`` to schedule what happens."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Event | Action]] = []
        self._num_added = 0

    def __bool__(self) -> bool:
        return bool(self._heap)

    def at(self, time: float, what: Event | Action) -> None:
        """Deliver an event, or call an action, at ``time``. Items of the same time are handled in the order added."""
        self._num_added += 1
        heapq.heappush(self._heap, (max(time, self.now), self._num_added, what))

    def after(self, seconds: float, what: Event | Action) -> None:
        self.at(self.now + seconds, what)

    def post(self, event: Event) -> None:
        """Deliver an event now, after all items that are already due."""
        self.at(self.now, event)

    def next(self) -> Event | Action:
        self.now, _, what = heapq.heappop(self._heap)
        return what


class Performer(Protocol):
    def perform(self, command: Command) -> None: ...


class Driver:
    def __init__(
        self,
        coordinator: Coordinator,
        world: Performer,
        agenda: Agenda,
        *,
        record: Callable[[Entry], None] | None = None,
    ) -> None:
        self._coordinator, self._world, self._agenda, self._record = coordinator, world, agenda, record
        self._timer: float | None = None
        self.num_events = 0

    def run(self, first: Event) -> FinishRun:
        """Handle events until the run is over."""
        self._agenda.post(first)
        finish = None
        while finish is None:
            if not self._agenda:
                raise Deadlock(f"at {self._agenda.now:.1f} s no further event is scheduled; {self._waits()}")
            what = self._agenda.next()
            if isinstance(what, Event):
                finish = self._handle(what)
            else:
                what()
        return finish

    def _handle(self, event: Event) -> FinishRun | None:
        now = self._agenda.now
        self.num_events += 1
        commands = self._coordinator.handle(event, now=now)
        if self._record is not None:
            self._record(Entry(now=now, event=event, commands=tuple(commands)))
        finish = None
        for command in commands:
            match command:
                case FinishRun():
                    finish = command
                case SetTimer(at=at):
                    self._set_timer(at)
                case _:
                    self._world.perform(command)
        return finish

    def _set_timer(self, at: float) -> None:
        self._timer = at
        self._agenda.at(at, lambda: self._fire(at))

    def _fire(self, at: float) -> None:
        if self._timer == at:  # not replaced since
            self._timer = None
            self._agenda.post(TimerFired())

    def _waits(self) -> str:
        waits = [f"{wait.what} since {wait.since:.1f} s" for wait in self._coordinator.waits()]
        return f"waiting for {'; '.join(waits)}" if waits else "the coordinator waits for nothing"
