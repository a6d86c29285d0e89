"""The trainer in virtual time: one thing after the other, in the order asked, and publishing beside it.

A step over ``tokens`` takes ``fixed_s + token_s * tokens / num_replicas``: replicas share the tokens, the optimizer and
the communication at the end do not get cheaper with their number. It ends no sooner than the version it began with is
published.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

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
    warm_up_s: float = 0.0
    """Seconds more of the first step."""

    def times(self, factor: float) -> TrainerCosts:
        """Of a trainer that takes so many times as long for a step."""
        return replace(self, fixed_s=factor * self.fixed_s, token_s=factor * self.token_s)

    def step(self, tokens: int) -> float:
        return self.fixed_s + self.token_s * tokens / self.num_replicas


@dataclass(slots=True, kw_only=True)
class _Order:
    seconds: float
    """Where nothing else runs on the same devices."""
    begin: Callable[[], None] | None = None
    end: Callable[[float], Event] | None = None
    """The news of its end, given its seconds."""
    is_step: bool = False


class TrainerModel:
    def __init__(self, costs: TrainerCosts, agenda: Agenda, *, on_busy: Callable[[bool], None]) -> None:
        """``on_busy`` is told when an optimizer step begins and ends."""
        self._costs, self._agenda, self._on_busy = costs, agenda, on_busy
        self._orders: deque[_Order] = deque()
        self._slowdown = 1.0
        """How many times as long an optimizer step takes at this moment."""
        self._left_s = self._began = self._since = 0.0
        """Of the order under way: what is left at full speed, when it began, when its speed last changed."""
        self._published_at = 0.0
        """A step does not end before the weights it changes are pushed."""
        self._num_plans = 0
        self._is_warm = False

    def start(self, version: Version) -> None:
        self._order(_Order(seconds=self._costs.start_s, end=lambda seconds: TrainerReached(version=version)))

    def train(self, version: Version, tokens: int) -> None:
        def trained(seconds: float) -> Event:
            return StepTrained(version=Version(version + 1), seconds=seconds, metrics=())

        warm_up_s = 0.0 if self._is_warm else self._costs.warm_up_s
        self._is_warm = True
        self._order(_Order(seconds=warm_up_s + self._costs.step(tokens), end=trained, is_step=True))

    def publish(self, version: Version) -> None:
        publish_s = self._costs.publish_s

        def published(seconds: float) -> Event:
            return WeightsPublished(version=version, seconds=publish_s)

        def begin() -> None:
            self._published_at = self._agenda.now + publish_s
            self._agenda.at(self._published_at, published(publish_s))

        if self._costs.publish_overlaps:
            self._order(_Order(seconds=0.0, begin=begin))
        else:
            self._order(_Order(seconds=publish_s, end=published))

    def save(self, version: Version) -> None:
        def saved(seconds: float) -> Event:
            return CheckpointSaved(version=version, seconds=seconds)

        self._order(_Order(seconds=self._costs.checkpoint_s, end=saved))

    def slow_down(self, factor: float) -> None:
        """From now on an optimizer step takes ``factor`` times as long as with the devices to itself."""
        if self._orders and self._orders[0].is_step and factor != self._slowdown:
            self._left_s -= (self._agenda.now - self._since) / self._slowdown
            self._slowdown = factor
            self._plan()
        self._slowdown = factor

    def _order(self, order: _Order) -> None:
        self._orders.append(order)
        if len(self._orders) == 1:
            self._begin()

    def _begin(self) -> None:
        order = self._orders[0]
        self._left_s, self._began = order.seconds, self._agenda.now
        if order.begin is not None:
            order.begin()
        self._plan()
        if order.is_step:
            self._on_busy(True)

    def _plan(self) -> None:
        """Be done when what is left is done at the present speed; an earlier plan is void."""
        self._since = self._agenda.now
        self._num_plans += 1
        plan, factor = self._num_plans, self._slowdown if self._orders[0].is_step else 1.0
        self._agenda.after(self._left_s * factor, lambda: self._finish(plan))

    def _finish(self, plan: int) -> None:
        if plan != self._num_plans:
            return
        if self._orders[0].is_step and self._agenda.now < self._published_at:
            self._agenda.at(self._published_at, lambda: self._finish(plan))
            return
        order = self._orders.popleft()
        if order.is_step:
            self._on_busy(False)
        if order.end is not None:
            self._agenda.post(order.end(self._agenda.now - self._began))
        if self._orders:
            self._begin()
