"""What a worker said and how it ended, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

TOTAL_WAIT_S = 240.0


class Story:
    def __init__(self) -> None:
        self.messages: list[object] = []
        self.endings: list[str] = []
        self._changed = asyncio.Event()

    def hear(self, message: object) -> None:
        assert not self.endings
        self.messages.append(message)
        self._changed.set()

    def lose(self, reason: str) -> None:
        self.endings.append(reason)
        self._changed.set()

    async def message(self, number: int) -> object:
        await self._until(lambda: len(self.messages) > number)
        return self.messages[number]

    async def ending(self) -> str:
        await self._until(lambda: bool(self.endings))
        return self.endings[0]

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(TOTAL_WAIT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


async def moments() -> None:
    """Time for what must not happen."""
    for _ in range(5):
        await asyncio.sleep(0.01)
