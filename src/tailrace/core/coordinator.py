"""The one object a driver talks to: events in, commands out.

``handle`` absorbs a fact, then applies every rule once, in order. It is a function of its history: the same
events at the same times give the same commands, which is what replay, resume and simulation rest on.
"""

from __future__ import annotations

from typing import Any

from tailrace.core import codec
from tailrace.core.absorb import absorb
from tailrace.core.commands import Command, FinishRun, TrainStep
from tailrace.core.events import Event, RunResumed
from tailrace.core.ids import TrajectoryId, Version
from tailrace.core.invariants import check
from tailrace.core.policy import Policies
from tailrace.core.rules import RULES, next_step
from tailrace.core.schedule import Schedule
from tailrace.core.state import State
from tailrace.core.waits import Wait, waits


class Coordinator:
    """Owns the state of a run. A driver stamps each event once and performs the commands."""

    def __init__(self, schedule: Schedule, *, policies: Policies, state: State | None = None) -> None:
        self._schedule = schedule
        self._policies = policies
        self._state = State.initial(schedule) if state is None else state

    @classmethod
    def restore(cls, schedule: Schedule, snapshot: Any, *, policies: Policies) -> Coordinator:
        """A coordinator as it was when ``snapshot`` was taken."""
        return cls(schedule, policies=policies, state=codec.decode(State, snapshot))

    def snapshot(self) -> Any:
        """The whole state as JSON values. Its size depends on what is live, not on how long the run lasted."""
        return codec.encode(self._state)

    def handle(self, event: Event, *, now: float) -> list[Command]:
        """Absorb one fact and return what must be done about it."""
        if self._state.verdict is not None and not isinstance(event, RunResumed):
            return []
        absorb(self._state, self._schedule, event, now)
        commands: list[Command] = []
        for rule in RULES:
            if self._state.verdict is None:
                commands += rule(self._state, self._schedule, self._policies, now)
        if self._state.verdict is not None and not any(isinstance(command, FinishRun) for command in commands):
            commands.append(FinishRun(is_complete=False, reason=self._state.verdict))
        return commands

    def waits(self) -> list[Wait]:
        """What the run waits for at this moment."""
        return waits(self._state, self._schedule)

    def live(self) -> set[TrajectoryId]:
        """Responses the run still needs: their payload must be kept."""
        return {trajectory.id for trajectory in self._state.trajectories()}

    def step_in_progress(self) -> TrainStep | None:
        """The step that was asked for and is not trained yet."""
        return None if self._state.training is None else next_step(self._state)

    @property
    def version(self) -> Version:
        return self._state.version

    @property
    def schedule(self) -> Schedule:
        return self._schedule

    def check(self) -> None:
        """Raise AssertionError if any two collections disagree."""
        check(self._state, self._schedule)
