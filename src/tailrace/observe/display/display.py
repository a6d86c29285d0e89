"""What a person sees while a run goes on: a live display on a terminal, plain lines anywhere else.

A display is fed everything and decides what to show: each journal entry, each metric row, and about once a second what
the run waits for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Protocol, TextIO

from tailrace.core.journal import Entry
from tailrace.core.run.waits import Wait
from tailrace.observe.display.progress import Progress, wait_line
from tailrace.observe.metrics.rows import Row
from tailrace.observe.shared_fold.run_fold import RunFold

WAIT_SHOWN_AFTER_S = 10.0


class Display(Protocol):
    def say(self, line: str) -> None:
        """Print a sentence that stays on the screen."""
        ...

    def begin(self, run: RunFold, rows: Sequence[Row]) -> None:
        """Take over what happened before: what runs where, and all rows. Comes before the first entry."""
        ...

    def entry(self, entry: Entry) -> None: ...

    def row(self, row: Row) -> None: ...

    def waits(self, waits: Sequence[Wait], now: float) -> None: ...

    def close(self) -> None: ...


class PlainDisplay:
    """One line per row, and one per long wait, at most every ten seconds."""

    def __init__(self, max_steps: int, say: Callable[[str], None]) -> None:
        self.say = say
        self._progress = Progress(max_steps)
        self._quiet_until = 0.0

    def begin(self, run: RunFold, rows: Sequence[Row]) -> None:
        for row in rows:
            self._progress.note(row)

    def entry(self, entry: Entry) -> None:
        pass

    def row(self, row: Row) -> None:
        self.say(self._progress.line(row))

    def waits(self, waits: Sequence[Wait], now: float) -> None:
        long = [wait for wait in waits if now - wait.since >= WAIT_SHOWN_AFTER_S]
        if long and now >= self._quiet_until:
            self._quiet_until = now + WAIT_SHOWN_AFTER_S
            self.say(wait_line(long, now))

    def close(self) -> None:
        pass


def open_display(max_steps: int, say: Callable[[str], None], *, stream: TextIO | None = None) -> Display:
    """A live display if ``stream`` (default: stdout) is a suitable terminal and rich is installed, else a plain one."""
    stream = sys.stdout if stream is None else stream
    can_draw = (stream.encoding or "").lower().replace("-", "") == "utf8"
    if not (stream.isatty() and can_draw):
        return PlainDisplay(max_steps, say)
    try:
        from tailrace.observe.display.live import LiveDisplay
    except ModuleNotFoundError as error:
        if error.name != "rich":
            raise
        return PlainDisplay(max_steps, say)
    return LiveDisplay.on(max_steps, stream)
