"""The trainer in virtual time. It performs commands one after another; publishing may run beside them.

A piece of a step takes ``piece_s + token_s * tokens / num_replicas``, and the finish of the step takes ``fixed_s``:
replicas share the tokens, but the optimizer and the communication at the end take the same time for any number of
replicas. A step that is not streamed is one piece. It does not end before the version it started from is published.

A trainer that is killed and started again begins with the last checkpoint and repeats the steps after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from tailrace.core.events import (
    CheckpointSaved,
    GradientsAccumulated,
    StepTrained,
    TrainerEvent,
    TrainerLost,
    TrainerReached,
    WeightsPublished,
)
from tailrace.core.ids import Version
from tailrace.sim.driver import Agenda


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerCosts:
    fixed_s: float
    """Seconds of the finish of every step, whatever its batch."""
    piece_s: float = 0.0
    """Seconds of every piece, whatever its tokens."""
    token_s: float
    """Seconds per token (prompt and response) on one replica."""
    num_replicas: int = 1
    publish_s: float = 0.0
    publish_overlaps: bool = True
    """True: publishing runs beside the next step, which ends after it. False: the next step begins after it."""
    checkpoint_s: float = 0.0
    start_s: float = 0.0
    warm_up_s: float = 0.0
    """Additional seconds of the first step."""

    def times(self, factor: float) -> TrainerCosts:
        """Return the costs of a trainer whose steps take ``factor`` times as long."""
        stretched = {name: factor * getattr(self, name) for name in ("fixed_s", "piece_s", "token_s")}
        return replace(self, **stretched)

    def piece(self, tokens: float, num_replicas: int | None = None) -> float:
        """``num_replicas``: those that share the tokens; default: all."""
        return self.piece_s + self.token_s * tokens / (num_replicas or self.num_replicas)


@dataclass(slots=True, kw_only=True)
class _Order:
    seconds: float
    """Seconds that it takes if nothing else runs on the same devices."""
    begin: Callable[[], None] | None = None
    end: Callable[[float], TrainerEvent] | None = None
    """Returns the event that reports its end, given its seconds."""
    is_step: bool = False
    is_alone: bool = False
    """Whether no instance is on its devices: then neither slows the other down."""
    changes_weights: bool = False


class TrainerModel:
    def __init__(self, costs: TrainerCosts, agenda: Agenda, *, on_busy: Callable[[bool], None]) -> None:
        """``on_busy`` is called with True when work on an optimizer step begins that shares devices with instances, and
        with False when it ends."""
        self._costs, self._agenda, self._on_busy = costs, agenda, on_busy
        self._orders: deque[_Order] = deque()
        self._slowdown = 1.0
        """Current factor by which an optimizer step is slowed down."""
        self._left_s = self._began = self._since = 0.0
        """The order in progress: remaining seconds at full speed, time of its start, time its speed last changed."""
        self._published_at = 0.0
        """When the current publish ends. A step does not end before it."""
        self._num_plans = 0
        self._is_warm = False
        self._step_s = 0.0
        """Seconds that the step in progress took so far."""
        self._incarnation = 0
        self._saved = Version(0)
        """Version of the last checkpoint; 0: there is none."""
        self._taken_s: dict[Version, float] = {}
        """Seconds of each step after the last checkpoint, by the version it led to."""

    def start(self, incarnation: int) -> None:
        self._incarnation = incarnation
        for version, seconds in {self._saved: self._costs.start_s, **self._taken_s}.items():
            self._order(_Order(seconds=seconds, end=partial(_reached, version)))

    def kill(self, reason: str) -> None:
        if any(order.is_step for order in self._orders):
            self._on_busy(False)
        self._orders.clear()
        self._num_plans += 1  # nothing that was planned comes to its end
        self._step_s, self._published_at = 0.0, 0.0
        self._post(TrainerLost(reason=reason))

    def _post(self, event: TrainerEvent) -> None:
        self._agenda.post(replace(event, incarnation=self._incarnation))

    def accumulate(
        self, version: Version, num_responses: int, tokens: int, *, piece: int = 0, num_replicas: int | None = None
    ) -> None:
        """``num_replicas``: replicas whose devices were lent to it; None: all compute, beside the instances."""

        def accumulated(seconds: float) -> TrainerEvent:
            self._step_s += seconds
            return GradientsAccumulated(version=version, num_responses=num_responses, seconds=seconds, piece=piece)

        warm_up_s = 0.0 if self._is_warm else self._costs.warm_up_s
        self._is_warm = True
        seconds = warm_up_s + self._costs.piece(tokens, num_replicas)
        is_alone = num_replicas is not None
        self._order(_Order(seconds=seconds, end=accumulated, is_step=True, is_alone=is_alone))

    def drop_step(self) -> None:
        def drop() -> None:
            self._step_s = 0.0

        self._order(_Order(seconds=0.0, begin=drop))

    def finish_step(self, version: Version) -> None:
        def trained(seconds: float) -> TrainerEvent:
            step_s, self._step_s = self._step_s + seconds, 0.0
            self._taken_s[Version(version + 1)] = step_s
            return StepTrained(version=Version(version + 1), seconds=step_s, metrics=())

        self._order(_Order(seconds=self._costs.fixed_s, end=trained, is_step=True, changes_weights=True))

    def publish(self, version: Version) -> None:
        publish_s = self._costs.publish_s

        def published(seconds: float) -> TrainerEvent:
            return WeightsPublished(version=version, seconds=publish_s)

        def begin() -> None:
            self._published_at = self._agenda.now + publish_s
            # If the trainer is killed meanwhile, the coordinator refuses it by its number.
            self._agenda.at(self._published_at, replace(published(publish_s), incarnation=self._incarnation))

        if self._costs.publish_overlaps:
            self._order(_Order(seconds=0.0, begin=begin))
        else:
            self._order(_Order(seconds=publish_s, end=published))

    def save(self, version: Version) -> None:
        def saved(seconds: float) -> TrainerEvent:
            self._saved, self._taken_s = version, {v: s for v, s in self._taken_s.items() if v > version}
            return CheckpointSaved(version=version, seconds=seconds)

        self._order(_Order(seconds=self._costs.checkpoint_s, end=saved))

    def slow_down(self, factor: float) -> None:
        """Make optimizer steps take ``factor`` times as long as alone on their devices, from now on."""
        if self._orders and self._is_slowed(self._orders[0]) and factor != self._slowdown:
            self._left_s -= (self._agenda.now - self._since) / self._slowdown
            self._slowdown = factor
            self._plan()
        self._slowdown = factor

    @staticmethod
    def _is_slowed(order: _Order) -> bool:
        return order.is_step and not order.is_alone

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
            self._on_busy(self._is_slowed(order))

    def _plan(self) -> None:
        """Schedule the end of the order at the current speed. This replaces an earlier end."""
        self._since = self._agenda.now
        self._num_plans += 1
        plan, factor = self._num_plans, self._slowdown if self._is_slowed(self._orders[0]) else 1.0
        self._agenda.after(self._left_s * factor, lambda: self._finish(plan))

    def _finish(self, plan: int) -> None:
        if plan != self._num_plans:
            return
        if self._orders[0].changes_weights and self._agenda.now < self._published_at:
            self._agenda.at(self._published_at, lambda: self._finish(plan))
            return
        order = self._orders.popleft()
        if order.is_step and not (self._orders and self._orders[0].is_step):
            self._on_busy(False)
        if order.end is not None:
            self._post(order.end(self._agenda.now - self._began))
        if self._orders:
            self._begin()


def _reached(version: Version, seconds: float) -> TrainerEvent:
    return TrainerReached(version=version)
