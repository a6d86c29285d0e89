"""Fits costs to samples of which some ran beside other work on the same devices, and finds how much that slowed them
down.

In a second beside a part ``busy`` of the other side, ``1 / (1 + (slowdown - 1) * busy)`` seconds of work are done. The
costs are fitted to the samples that ran alone. The slowdown is the one under which all work of the others is done in
all their time. That takes samples of both kinds. If one kind is missing, the slowdown is assumed. If it is those that
ran alone, the costs are fitted to what the others would have taken alone, under the assumed slowdown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Generic, TypeVar

from tailrace.observe.costs.fitting import error
from tailrace.observe.costs.token_clock import EngineSample
from tailrace.sim.observations import TrainingSample

_MOST_SLOWDOWN = 16.0
_LITTLE = 0.02
"""A sample counts as alone if it ran beside other work for less than this share of its time."""
_FEWEST = 3
"""Fewest samples of a kind, alone or beside other work, that tell anything."""

Sample = TypeVar("Sample", EngineSample, TrainingSample)
Costs = TypeVar("Costs")


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedApart(Generic[Costs]):
    costs: Costs
    """Costs of work that has its devices to itself."""
    slowdown: float
    """Factor by which work takes longer beside full load of the other side."""
    is_assumed: bool
    """Whether the slowdown could not be measured."""
    is_corrected: bool = False
    """Whether the costs follow from the assumed slowdown."""
    num_samples: int
    """Samples to which the costs are fitted."""
    error: float
    """Mean absolute percentage error of the costs over these samples."""


def fit_apart(
    samples: Sequence[Sample],
    fit: Callable[[Sequence[Sample]], Costs],
    seconds: Callable[[Costs, Sample], float],
    *,
    unseen: float,
) -> FittedApart[Costs]:
    """Fit costs and slowdown to samples of warm processes. ``seconds``: those of a sample under given costs, alone on
    its devices. ``unseen``: the slowdown to assume if it cannot be measured."""
    alone, beside = those_alone(samples), [sample for sample in samples if _is_beside(sample)]
    is_corrected = bool(beside) and len(alone) < _FEWEST
    used = [alone_sample(sample, unseen) for sample in samples] if is_corrected else alone
    costs = fit(used)
    is_assumed = is_corrected or len(beside) < _FEWEST
    return FittedApart(
        costs=costs,
        slowdown=unseen if is_assumed else _slowdown([(sample, seconds(costs, sample)) for sample in beside]),
        is_assumed=is_assumed,
        is_corrected=is_corrected,
        num_samples=len(used),
        error=error([seconds(costs, sample) for sample in used], [sample.seconds for sample in used]),
    )


def warm(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Return the samples of processes that had not just started; all samples if there is none."""
    return [sample for sample in samples if not sample.is_first] or samples


def those_alone(samples: Sequence[Sample]) -> list[Sample]:
    return [sample for sample in samples if not _is_beside(sample)]


def alone_sample(sample: Sample, slowdown: float) -> Sample:
    """Return the sample as if its work had had the devices to itself."""
    return replace(sample, seconds=_done(sample, slowdown), overlaps=[])


def mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def _overlap_s(sample: EngineSample | TrainingSample) -> float:
    return sum(seconds for seconds, _ in sample.overlaps)


def _is_beside(sample: EngineSample | TrainingSample) -> bool:
    return _overlap_s(sample) > _LITTLE * sample.seconds


def _done(sample: EngineSample | TrainingSample, slowdown: float) -> float:
    """Return the seconds of work that were done in the time of a sample."""
    beside = sum(seconds / (1.0 + (slowdown - 1.0) * busy) for seconds, busy in sample.overlaps)
    return max(0.0, sample.seconds - _overlap_s(sample)) + beside


def _slowdown(samples: Sequence[tuple[EngineSample | TrainingSample, float]]) -> float:
    """Return the slowdown from pairs (sample that ran beside other work, its seconds if it had run alone)."""
    work = sum(alone for _, alone in samples)
    return _falling(lambda factor: sum(_done(sample, factor) for sample, _ in samples) - work, 1.0, _MOST_SLOWDOWN)


def _falling(value: Callable[[float], float], low: float, high: float) -> float:
    """Return where a falling function is zero, or the end of the range that is nearest to it."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if value(middle) > 0 else (low, middle)
    return low
