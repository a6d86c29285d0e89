"""How long the parts of an optimizer step take, and how a lone job's steps follow each other.

    serial      | rollout | log-prob | update | sync | rollout ...
    one-step    | log-prob | update | (wait) | sync | log-prob ...      on the node group: trains step i
                | rollout of step i + 1      |      | rollout ...       on the job's own devices

With ``one-step``, weights are synchronized after both, so training may be late by what the rollout lasts longer. The
first rollout has no training beside it; before it the rollout devices receive the first weights, which takes as long as
a synchronization. So the first training begins one period after the start of the job.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from random import Random

from tailrace.cluster.demand.trace import DemandSegment, DemandTrace
from tailrace.cluster.job_spec import Parts, StatePart


@dataclass(frozen=True, slots=True, kw_only=True)
class StateUse:
    """Which parts of its state a job needs on the devices, and when."""

    is_lazy: bool = False
    """Log-probabilities and synchronization are phases of their own that need the weights alone. Otherwise every phase
    needs all that comes to the devices."""
    host_step_s: float = 0.0
    """Seconds of an optimizer step on the host, after the update and without the devices. 0: the update includes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseShape:
    """The operations of a step that are asked for as one phase."""

    start: int
    stop: int
    parts: Parts | None
    """Parts of the state that it needs on the devices; None: all that come there."""
    host_after_s: float = 0.0
    """Seconds of work on the host that follow."""

    def of(self, operations_s: Sequence[float]) -> tuple[float, ...]:
        return tuple(operations_s[self.start : self.stop])


class Overlap(StrEnum):
    """Whether a job generates while it trains."""

    SERIAL = "serial"
    ONE_STEP = "one-step"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    rollout_s: float
    operations_s: tuple[float, ...]
    """Operations on the node group, in order. The last one synchronizes the weights."""

    def __post_init__(self) -> None:
        if len(self.operations_s) < 2 or min(self.rollout_s, *self.operations_s) <= 0:
            raise ValueError(f"a step needs a rollout and two or more operations, all above 0 s, got {self}")

    @property
    def group_s(self) -> float:
        """Seconds on the node group."""
        return sum(self.operations_s)

    @property
    def sync_s(self) -> float:
        return self.operations_s[-1]

    @property
    def train_s(self) -> float:
        """Seconds of all operations before the synchronization."""
        return sum(self.operations_s[:-1])

    def scaled(self, draw: Random, jitter: float) -> StepTimes:
        """Return the same step with each part multiplied by a log-normal factor of mean 1 and this deviation."""
        if not jitter:
            return self
        sigma = math.sqrt(math.log1p(jitter**2))
        parts = [part * draw.lognormvariate(-(sigma**2) / 2, sigma) for part in (self.rollout_s, *self.operations_s)]
        return StepTimes(rollout_s=parts[0], operations_s=tuple(parts[1:]))


def phase_shapes(num_operations: int, overlap: Overlap, use: StateUse) -> tuple[PhaseShape, ...]:
    """Return the phases of a step, in order. Unless it is all one phase, the last one is the synchronization."""
    sync_at = num_operations - 1
    cuts = {0, num_operations}
    if use.is_lazy or use.host_step_s or overlap is Overlap.ONE_STEP:
        cuts |= {sync_at, 1} if use.is_lazy else {sync_at}
    found, bounds = [], sorted(cuts)
    for start, stop in pairwise(bounds):
        is_update = stop == sync_at
        parts = (StatePart.WEIGHTS,) if use.is_lazy and not is_update else None
        found.append(PhaseShape(start=start, stop=stop, parts=parts, host_after_s=use.host_step_s * is_update))
    return tuple(found)


def draw_steps(cycle: Sequence[StepTimes], count: int, *, draw: Random, jitter: float) -> tuple[StepTimes, ...]:
    """Return ``count`` steps that repeat ``cycle``, each part with its own jitter."""
    return tuple(cycle[index % len(cycle)].scaled(draw, jitter) for index in range(count))


def alone_s(steps: Sequence[StepTimes], overlap: Overlap, *, load_s: float = 0.0, host_step_s: float = 0.0) -> float:
    """Return how long the job takes with a node group to itself. ``load_s``: the first load of its state."""
    if overlap is Overlap.SERIAL:
        return load_s + sum(step.rollout_s + step.group_s + host_step_s for step in steps)
    total = steps[0].sync_s + steps[0].rollout_s
    rollouts = [*(step.rollout_s for step in steps[1:]), 0.0]
    for step, rollout_s in zip(steps, rollouts, strict=True):
        total += max(rollout_s, load_s + step.train_s + host_step_s) + step.sync_s
        load_s = 0.0
    return total


def demand_trace(cycle: Sequence[StepTimes], overlap: Overlap, use: StateUse | None = None) -> DemandTrace:
    """Return what a job that repeats these steps needs of its node group."""
    segments: list[DemandSegment] = []
    offset, use = 0.0, use or StateUse()
    for index, step in enumerate(cycle):
        shapes = phase_shapes(len(step.operations_s), overlap, use)
        if overlap is Overlap.SERIAL:
            segments += _one_after_the_other(step, shapes, offset + step.rollout_s)
        else:
            rollout_s, train_s = cycle[(index + 1) % len(cycle)].rollout_s, step.train_s + use.host_step_s
            slack_s = max(0.0, rollout_s - train_s)
            segments += _one_after_the_other(step, shapes[:-1], offset, slack_s)
            trained_at = segments[-1].end_s + shapes[-2].host_after_s
            segments.append(DemandSegment(offset_s=max(offset + rollout_s, trained_at), duration_s=step.sync_s))
        offset = segments[-1].end_s
    return DemandTrace(period_s=offset, segments=tuple(segments), steps=len(cycle))


def _one_after_the_other(
    step: StepTimes, shapes: Sequence[PhaseShape], offset_s: float, slack_s: float = 0.0
) -> Iterator[DemandSegment]:
    for shape in shapes:
        segment = DemandSegment(offset_s=offset_s, duration_s=sum(shape.of(step.operations_s)), slack_s=slack_s)
        offset_s = segment.end_s + shape.host_after_s
        yield segment
