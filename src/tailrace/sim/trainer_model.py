"""The trainer in virtual time: one thing after the other, in the order asked.

A step over ``tokens`` takes ``fixed_s + token_s * tokens / num_replicas``: replicas share the tokens, the optimizer and
the communication at the end do not get cheaper with their number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tailrace.core.events import CheckpointSaved, Event, StepTrained, TrainerReached, WeightsPublished
from tailrace.core.ids import Version
from tailrace.sim.driver import Agenda


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerCosts:
    fixed_s: float
    """Seconds of every step, whatever its batch."""
    token_s: float
    """Seconds per token (prompt and response) on one replica."""
    num_replicas: int = 1
    publish_s: float = 0.0
    publish_overlaps: bool = False
    """Publishing runs beside the next step, rather than before it."""
    checkpoint_s: float = 0.0
    start_s: float = 0.0

    def step(self, tokens: int) -> float:
        return self.fixed_s + self.token_s * tokens / self.num_replicas


class TrainerModel:
    def __init__(self, costs: TrainerCosts, agenda: Agenda, *, on_busy: Callable[[bool], float]) -> None:
        """``on_busy`` is told when training begins and ends, and says how many times as long a step takes."""
        self._costs, self._agenda, self._on_busy = costs, agenda, on_busy
        self._orders: deque[tuple[Callable[[], float], Callable[[float], Event]]] = deque()
        self._is_working = False

    def start(self, version: Version) -> None:
        self._order(lambda: self._costs.start_s, lambda seconds: TrainerReached(version=version))

    def train(self, version: Version, tokens: int) -> None:
        def begin() -> float:
            return self._on_busy(True) * self._costs.step(tokens)

        def end(seconds: float) -> Event:
            self._on_busy(False)
            return StepTrained(version=Version(version + 1), seconds=seconds, metrics=())

        self._order(begin, end)

    def publish(self, version: Version) -> None:
        def published(seconds: float) -> Event:
            return WeightsPublished(version=version, seconds=seconds)

        if self._costs.publish_overlaps:
            self._agenda.after(self._costs.publish_s, published(self._costs.publish_s))
        else:
            self._order(lambda: self._costs.publish_s, published)

    def save(self, version: Version) -> None:
        self._order(lambda: self._costs.checkpoint_s, lambda seconds: CheckpointSaved(version=version, seconds=seconds))

    def _order(self, begin: Callable[[], float], end: Callable[[float], Event]) -> None:
        self._orders.append((begin, end))
        if not self._is_working:
            self._next()

    def _next(self) -> None:
        self._is_working = bool(self._orders)
        if self._is_working:
            begin, end = self._orders.popleft()
            seconds = begin()
            self._agenda.after(seconds, lambda: self._finish(end, seconds))

    def _finish(self, end: Callable[[float], Event], seconds: float) -> None:
        self._agenda.post(end(seconds))
        self._next()
