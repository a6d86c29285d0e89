"""The trainer in virtual time: one thing after the other, in the order asked, and publishing beside it.

A step over ``tokens`` takes ``fixed_s + token_s * tokens / num_replicas``: replicas share the tokens, the optimizer and
the communication at the end do not get cheaper with their number. It ends no sooner than the version it began with is
published.
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
    publish_overlaps: bool = True
    """Publishing runs beside the next step and ends before it does, rather than before it begins."""
    checkpoint_s: float = 0.0
    start_s: float = 0.0

    def step(self, tokens: int) -> float:
        return self.fixed_s + self.token_s * tokens / self.num_replicas


class TrainerModel:
    def __init__(self, costs: TrainerCosts, agenda: Agenda, *, on_busy: Callable[[bool], float]) -> None:
        """``on_busy`` is told when training begins and ends, and says how many times as long a step takes."""
        self._costs, self._agenda, self._on_busy = costs, agenda, on_busy
        self._orders: deque[tuple[Callable[[], float], Callable[[float], Event | None]]] = deque()
        """How each begins, which says when it will end; and the news of its end, given its seconds."""
        self._is_working = False
        self._published_at = 0.0

    def start(self, version: Version) -> None:
        self._order(lambda: self._in(self._costs.start_s), lambda seconds: TrainerReached(version=version))

    def train(self, version: Version, tokens: int) -> None:
        def begin() -> float:
            return max(self._in(self._on_busy(True) * self._costs.step(tokens)), self._published_at)

        def end(seconds: float) -> Event:
            self._on_busy(False)
            return StepTrained(version=Version(version + 1), seconds=seconds, metrics=())

        self._order(begin, end)

    def publish(self, version: Version) -> None:
        publish_s = self._costs.publish_s

        def begin() -> float:
            self._published_at = self._in(publish_s)
            self._agenda.at(self._published_at, WeightsPublished(version=version, seconds=publish_s))
            return self._agenda.now if self._costs.publish_overlaps else self._published_at

        self._order(begin, lambda seconds: None)

    def save(self, version: Version) -> None:
        self._order(
            lambda: self._in(self._costs.checkpoint_s),
            lambda seconds: CheckpointSaved(version=version, seconds=seconds),
        )

    def _in(self, seconds: float) -> float:
        return self._agenda.now + seconds

    def _order(self, begin: Callable[[], float], end: Callable[[float], Event | None]) -> None:
        self._orders.append((begin, end))
        if not self._is_working:
            self._next()

    def _next(self) -> None:
        self._is_working = bool(self._orders)
        if self._is_working:
            began, (begin, end) = self._agenda.now, self._orders.popleft()
            self._agenda.at(begin(), lambda: self._finish(end, self._agenda.now - began))

    def _finish(self, end: Callable[[float], Event | None], seconds: float) -> None:
        if (news := end(seconds)) is not None:
            self._agenda.post(news)
        self._next()
