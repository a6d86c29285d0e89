"""The one object a driver talks to: events in, commands out.

``handle`` updates the rooms with an event, then applies the rules until none of them has anything left to do. The same
events at the same times always give the same commands. Replay, resume and simulation rely on this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailrace.core.collection import invariants as collection_invariants
from tailrace.core.commands import Accumulate, Command, FinishRun
from tailrace.core.costs import CostModel
from tailrace.core.errors import CoreError
from tailrace.core.evaluation import invariants as evaluation_invariants
from tailrace.core.events import Event, RunResumed
from tailrace.core.fleet import invariants as fleet_invariants
from tailrace.core.fleet.policy import Policies
from tailrace.core.ids import ResponseId, Version
from tailrace.core.rewards import invariants as rewards_invariants
from tailrace.core.rooms import Rooms
from tailrace.core.rules import HANDLERS, RULES, Rule
from tailrace.core.run.rules import judge, waits, watch
from tailrace.core.run.waits import Wait
from tailrace.core.schedule import Schedule
from tailrace.core.training import invariants as training_invariants
from tailrace.core.training.rules import sent_pieces

_MAX_PASSES = 50
"""Most times that the rules are applied after one event. Two or three are usual."""


class Coordinator:
    """Owns the state of a run. A driver gives each event its time, once, and performs the commands."""

    def __init__(
        self,
        schedule: Schedule,
        *,
        policies: Policies,
        rooms: Rooms | None = None,
        rules: Sequence[Rule] = RULES,
    ) -> None:
        """``rules``: the rules in another order, for tests."""
        self._rules = rules
        self._rooms = Rooms(schedule, policies) if rooms is None else rooms

    @classmethod
    def restore(
        cls, schedule: Schedule, snapshot: Any, *, policies: Policies, rules: Sequence[Rule] = RULES
    ) -> Coordinator:
        """Return a coordinator as it was when ``snapshot`` was taken."""
        return cls(schedule, policies=policies, rooms=Rooms.restore(schedule, policies, snapshot), rules=rules)

    def snapshot(self) -> Any:
        """Return the whole state as JSON values. Its size depends on what is live, not on how long the run lasted."""
        return self._rooms.snapshot()

    def handle(self, event: Event, *, now: float) -> list[Command]:
        """Update the state with one event and return the commands that follow from it."""
        rooms, run = self._rooms, self._rooms.run
        if run.is_over and not isinstance(event, RunResumed):
            return []
        if (handler := HANDLERS.get(type(event))) is None:
            raise TypeError(f"unknown event {event!r}")
        run.begin_event()
        handler(rooms, event, now)
        if run.is_over:
            return [FinishRun(is_complete=False, reason=run.reason)]
        rooms.fleet.note_event()
        commands = self._apply_rules(event, now)
        commands += judge(rooms)
        if not run.is_over:
            commands += watch(rooms, now)
        if run.is_over and not any(isinstance(command, FinishRun) for command in commands):
            commands.append(FinishRun(is_complete=False, reason=run.reason))
        return commands

    def _apply_rules(self, event: Event, now: float) -> list[Command]:
        """Apply all rules, and repeat while a rule reports a change that another rule may depend on."""
        rooms, commands = self._rooms, list[Command]()
        for _ in range(_MAX_PASSES):
            found = [step for rule in self._rules for step in rule(rooms, now)]
            commands += [command for command in found if command is not None]
            if None not in found:
                return commands
        last = ", ".join(type(command).__name__ for command in commands[-20:])
        raise CoreError(f"the rules reach no fixed point after {event!r}; the last commands were: {last}")

    def waits(self) -> list[Wait]:
        """Return what the run waits for at this moment."""
        return waits(self._rooms)

    def live(self) -> set[ResponseId]:
        """Return the responses whose payload the run still needs."""
        return {response.id for response in self._rooms.responses.all_responses()}

    def step_in_training(self) -> tuple[Accumulate, ...]:
        """Return the pieces that the trainer was sent of the step in progress; empty if there is none."""
        return tuple(sent_pieces(self._rooms))

    @property
    def rooms(self) -> Rooms:
        """The whole state. Read it only: the coordinator changes it."""
        return self._rooms

    @property
    def version(self) -> Version:
        return self._rooms.training.version

    @property
    def costs(self) -> CostModel:
        """Cost model of an instance, as it was last measured."""
        return self._rooms.fleet.costs

    @property
    def schedule(self) -> Schedule:
        """The schedule that the run follows now. It may change when the run is resumed."""
        return self._rooms.schedule

    @property
    def num_refused_reports(self) -> int:
        """Number of reports that were repeated, late or impossible, and therefore ignored."""
        return self._rooms.run.num_refused_reports

    @property
    def last_refused_report(self) -> str:
        """What the last refused report said."""
        return self._rooms.run.last_refused_report

    def check(self) -> None:
        """Raise AssertionError if an invariant of any room is broken."""
        self._rooms.responses.check()
        for room in (
            fleet_invariants,
            rewards_invariants,
            collection_invariants,
            training_invariants,
            evaluation_invariants,
        ):
            room.check(self._rooms)
