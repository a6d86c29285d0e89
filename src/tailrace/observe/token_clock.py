"""The token clock of an instance, read off its reports: how many steps its engine took, and over which load.

A clock is never reported, but a response that had ``a`` tokens at one report and has ``b`` at a later one has seen
``b - a`` steps in between, and so has everything that ran beside it. From the clock follows how many tokens the others
held, reported or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tailrace.core.commands import Dispatch
from tailrace.core.events import RolloutReported
from tailrace.core.ids import TrajectoryId

_MIN_STEPS = 16
"""Reports are joined until they span this many steps: a report comes up to a step after what it tells."""


@dataclass(slots=True)
class EngineSample:
    """Some engine steps in a row on one instance."""

    seconds: float = 0.0
    steps: int = 0
    prefilled: int = 0
    """Tokens submitted meanwhile: of prompts, and of responses that go on."""
    parts: list[tuple[int, float, int]] = field(default_factory=list)
    """(steps, tokens held, responses running)."""
    overlaps: list[tuple[float, float]] = field(default_factory=list)
    """Beside other work on the same devices: (seconds, part of the instances that were busy)."""
    is_first: bool = False
    """The instance had just started."""


class TokenClock:
    """Of one instance, from its start; hands each sample over when it is complete."""

    def __init__(self, *, prompt_length: int, max_running: int, hand_over: Callable[[EngineSample], None]) -> None:
        """``prompt_length``: mean tokens of a prompt, which reports do not tell."""
        self._prompt_length, self._max_running, self._hand_over = prompt_length, max_running, hand_over
        self._time = 0.0
        self._steps = 0
        self._points: dict[TrajectoryId, tuple[int, int]] = {}
        """Of each running response: (clock, length) when it was last heard of."""
        self._waiting: dict[TrajectoryId, int] = {}
        """Length of each response beyond those that can run, in order."""
        self._open = EngineSample(is_first=True)

    @property
    def is_busy(self) -> bool:
        return bool(self._points)

    def overlap(self, seconds: float, share: float) -> None:
        """The instance worked beside others on the same devices."""
        self._open.overlaps.append((seconds, share))

    def submit(self, dispatches: Iterable[Dispatch], now: float) -> None:
        if not self._points:
            self._time, self._open = now, EngineSample(is_first=self._open.is_first)
        self._waiting.update({dispatch.trajectory: dispatch.start for dispatch in dispatches})
        self._admit()

    def report(self, event: RolloutReported, now: float) -> None:
        news = {part.trajectory: part.length for part in event.progressed}
        news |= {end.trajectory: end.length for end in event.finished}
        known = [(*self._points[t], length) for t, length in news.items() if t in self._points]
        steps = max((at + length - before for at, before, length in known), default=self._steps) - self._steps
        if steps > 0:
            self._advance(steps, now)
        self._points.update({t: (self._steps, length) for t, length in news.items() if t in self._points})
        self.drop(end.trajectory for end in event.finished)

    def drop(self, trajectories: Iterable[TrajectoryId]) -> None:
        """They run no more."""
        for trajectory in trajectories:
            self._points.pop(trajectory, None)
            self._waiting.pop(trajectory, None)
        self._admit()
        if not self._points:
            self._close()

    def _advance(self, steps: int, now: float) -> None:
        middle = self._steps + steps / 2
        held = sum(before + middle - at + self._prompt_length for at, before in self._points.values())
        sample = self._open
        sample.parts.append((steps, held, len(self._points)))
        sample.steps += steps
        sample.seconds += now - self._time
        self._steps, self._time = self._steps + steps, now
        if sample.steps >= _MIN_STEPS:
            self._close()

    def _admit(self) -> None:
        while self._waiting and len(self._points) < self._max_running:
            trajectory = next(iter(self._waiting))
            start = self._waiting.pop(trajectory)
            self._points[trajectory] = (self._steps, start)
            self._open.prefilled += self._prompt_length + start

    def _close(self) -> None:
        if self._open.steps:
            self._hand_over(self._open)
        self._open = EngineSample()
