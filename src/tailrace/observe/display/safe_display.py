"""A display that cannot end a run: if it fails, the next simpler one takes its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tailrace.core.journal import Entry
from tailrace.core.run.waits import Wait
from tailrace.observe.display.display import Display
from tailrace.observe.guarded import Complain, Guarded
from tailrace.observe.metrics.rows import Row
from tailrace.observe.shared_fold.run_fold import RunFold


class SafeDisplay:
    """Shows everything on the first display that works."""

    def __init__(self, openers: Sequence[Callable[[], Display]], complain: Complain) -> None:
        """``openers``: open the displays, the best one first."""
        self._openers, self._complain = list(openers), complain
        self._display = self._open_next()

    def say(self, line: str) -> None:
        self._show(lambda display: display.say(line))

    def begin(self, run: RunFold, rows: Sequence[Row]) -> None:
        self._show(lambda display: display.begin(run, rows))

    def entry(self, entry: Entry) -> None:
        self._show(lambda display: display.entry(entry))

    def row(self, row: Row) -> None:
        self._show(lambda display: display.row(row))

    def waits(self, waits: Sequence[Wait], now: float) -> None:
        self._show(lambda display: display.waits(waits, now))

    def close(self) -> None:
        self._show(lambda display: display.close())

    def _show(self, work: Callable[[Display], None]) -> None:
        self._display.tell(work)
        while not self._display.is_on and self._openers:
            self._display = self._open_next()
            self._display.tell(work)

    def _open_next(self) -> Guarded[Display]:
        return Guarded("display", self._openers.pop(0), self._complain, leave=lambda display: display.close())
