"""How much of a controller's decisions was planning, event by event: the journal is decided again, by the clock.

What is left is bookkeeping, which every schedule has: reports and scores are taken note of, batches are collected.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from tailrace.core import commands as do
from tailrace.core.coordinator import Coordinator
from tailrace.core.fleet.planning import plan
from tailrace.core.journal import Entry
from tailrace.core.rooms import Rooms
from tailrace.core.rules import RULES
from tailrace.policies.strategies import policies_of
from tailrace.sim.calibrate import schedule_of


def planning_s(entries: Sequence[Entry]) -> list[float]:
    """Return, for each entry, how many of the seconds it took to decide went into the rule ``plan``."""
    stopwatch, schedule, found = _Stopwatch(), schedule_of(entries), []
    rules = [stopwatch.plan if rule is plan else rule for rule in RULES]
    coordinator = Coordinator(schedule, policies=policies_of(schedule), rules=rules)
    for entry in entries:
        stopwatch.seconds, began = 0.0, time.perf_counter()
        commands = tuple(coordinator.handle(entry.event, now=entry.now))
        took = time.perf_counter() - began
        if commands != entry.commands:
            raise SystemExit(f"decided again at {entry.now} s, the answer to {entry.event} is another one")
        found.append(entry.decided_s * stopwatch.seconds / took)
    return found


class _Stopwatch:
    """Adds up the seconds that the rule ``plan`` takes."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def plan(self, rooms: Rooms, now: float) -> Iterator[do.Command | None]:
        began = time.perf_counter()
        commands = list(plan(rooms, now))
        self.seconds += time.perf_counter() - began
        return iter(commands)
