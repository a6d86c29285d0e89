"""How much of a controller's decisions was planning, event by event: the journal is decided again, by the clock.

What is left is bookkeeping, which every schedule has: reports and scores are taken note of, batches are collected.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from unittest import mock

from tailrace.core import commands as do
from tailrace.core import coordinator as core
from tailrace.core.dispatching import dispatch
from tailrace.core.journal import Entry
from tailrace.core.policy import Policies
from tailrace.core.rules import RULES, Rule
from tailrace.core.schedule import Schedule
from tailrace.core.state import State
from tailrace.core.steering import close_plan, migrate, open_plan, pull, synchronize
from tailrace.policies.strategies import policies_of
from tailrace.sim.calibrate import schedule_of

PLANNING = (open_plan, synchronize, pull, migrate, dispatch, close_plan)
"""The rules that decide which instance pulls, gives up or gets what, and when that is asked again."""


def planning_s(entries: Sequence[Entry]) -> list[float]:
    """Of the seconds that each entry took to decide: those that planning took."""
    stopwatch = _Stopwatch()
    schedule = schedule_of(entries)
    found = []
    with mock.patch.object(core, "RULES", [stopwatch.timed(rule) if rule in PLANNING else rule for rule in RULES]):
        coordinator = core.Coordinator(schedule, policies=policies_of(schedule))
        for entry in entries:
            stopwatch.seconds, began = 0.0, time.perf_counter()
            commands = tuple(coordinator.handle(entry.event, now=entry.now))
            took = time.perf_counter() - began
            if commands != entry.commands:
                raise SystemExit(f"decided again at {entry.now} s, the answer to {entry.event} is another one")
            found.append(entry.decided_s * stopwatch.seconds / took)
    return found


class _Stopwatch:
    """Adds up what rules take."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, rule: Rule) -> Rule:
        def run(state: State, schedule: Schedule, policies: Policies, now: float) -> Iterator[do.Command]:
            began = time.perf_counter()
            commands = list(rule(state, schedule, policies, now))
            self.seconds += time.perf_counter() - began
            return iter(commands)

        return run
