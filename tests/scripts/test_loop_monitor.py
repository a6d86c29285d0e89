"""The monitor of an event loop tells which turns were slow, and of what."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Coroutine
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from loop_monitor import LoopMonitor

sys.path.pop(0)


def turns_of(work: Coroutine[object, object, None]) -> LoopMonitor:
    monitor = LoopMonitor(slow_s=0.05)
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(monitor)) as runner:
        runner.run(work)
    return monitor


def test_a_callback_that_sleeps_is_a_slow_turn_without_processor_time() -> None:
    async def work() -> None:
        await asyncio.sleep(0)
        time.sleep(0.06)
        await asyncio.sleep(0)

    monitor = turns_of(work())
    longest = max(monitor.slow, key=lambda turn: turn.wall_s)
    assert longest.wall_s >= 0.06
    assert longest.cpu_s < longest.wall_s
    assert longest.began <= time.monotonic()


def test_waiting_is_no_turn() -> None:
    async def work() -> None:
        for _ in range(3):
            await asyncio.sleep(0.06)

    monitor = turns_of(work())
    assert monitor.num_turns >= 3
    assert sum(turn.cpu_s for turn in monitor.slow) <= monitor.cpu_s
