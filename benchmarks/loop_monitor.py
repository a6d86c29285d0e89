"""How long an event loop is blocked: the time from the moment it wakes to the moment it waits for news again.

    monitor = LoopMonitor()
    loop = asyncio.SelectorEventLoop(monitor)

A turn of the loop runs all callbacks that are due, and nothing else can happen meanwhile. Costs two readings of the
clock for each turn. No run uses it: a benchmark does.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike as FileObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    began: float
    """By ``time.monotonic``, which is also the time of an event loop."""
    wall_s: float
    cpu_s: float
    """Processor time of the loop's thread: what is left of ``wall_s`` was waiting, for the disk or for a core."""


class LoopMonitor(selectors.BaseSelector):
    """Selects for an event loop and measures the turns between."""

    def __init__(self, slow_s: float = 0.002) -> None:
        """``slow_s``: turns that take at least this long are recorded one by one."""
        self._selector, self._slow_s = selectors.DefaultSelector(), slow_s
        self._woke: tuple[float, float] | None = None
        self.slow: list[Turn] = []
        self.cpu_s = 0.0
        """Processor seconds of all turns together."""
        self.num_turns = 0

    @property
    def busy_since(self) -> float | None:
        """When the current turn began; None while the loop waits."""
        woke = self._woke
        return None if woke is None else woke[0]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._end_turn()
        try:
            return self._selector.select(timeout)
        finally:
            self._woke = (time.monotonic(), time.thread_time())

    def _end_turn(self) -> None:
        if self._woke is None:
            return
        began, cpu_s = self._woke[0], time.thread_time() - self._woke[1]
        wall_s = time.monotonic() - began
        self._woke = None
        self.num_turns += 1
        self.cpu_s += cpu_s
        if wall_s >= self._slow_s:
            self.slow.append(Turn(began=began, wall_s=wall_s, cpu_s=cpu_s))

    def register(self, fileobj: FileObject, events: int, data: object = None) -> selectors.SelectorKey:
        return self._selector.register(fileobj, events, data)

    def unregister(self, fileobj: FileObject) -> selectors.SelectorKey:
        return self._selector.unregister(fileobj)

    def modify(self, fileobj: FileObject, events: int, data: object = None) -> selectors.SelectorKey:
        return self._selector.modify(fileobj, events, data)

    def get_map(self) -> Mapping[FileObject, selectors.SelectorKey]:
        return self._selector.get_map()

    def close(self) -> None:
        self._selector.close()
