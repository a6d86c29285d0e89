"""The cost model of one engine, fitted to steps measured under chosen loads, and its error under other loads.

A load point is a number of responses that run at the same time, and the tokens each holds when the clock starts. The
model is fitted to the points of a grid; its error is measured on random points between them, which it has not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

from tailrace.core.costs import CostModel, step_s
from tailrace.observe.costs.fitting import ErrorScale, StepCosts, error, fit_engine, fit_linear
from tailrace.observe.costs.token_clock import EngineSample

NUM_LENGTHS = 5
NUM_HELD_OUT = 16
SHORTEST = 16
_LEAST_FITTED = 6
_LEAST_HELD_OUT = 3


@dataclass(frozen=True, slots=True, order=True)
class LoadPoint:
    num_running: int
    length: int
    """Tokens of each response with its prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One load point, visited several times."""

    point: LoadPoint
    step_s: tuple[float, ...]
    """The median step of each visit."""
    fill_s: tuple[float, ...]
    """For each visit, seconds from the order to the first token of every response."""
    held: float
    """Tokens that the responses had, in the middle of the steps."""
    kv_tokens: float
    """Tokens of the KV cache that they took up."""

    @property
    def seconds(self) -> float:
        """Seconds of a step: the shortest visit, because other work on the machine only makes visits longer."""
        return min(self.step_s)

    @property
    def throughput(self) -> float:
        """Tokens per second."""
        return self.point.num_running / self.seconds

    def sample(self) -> EngineSample:
        return EngineSample(seconds=self.seconds, steps=1, parts=[(1, self.held, self.point.num_running)])


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    model: CostModel
    fitted: tuple[Measurement, ...]
    held_out: tuple[Measurement, ...]

    @property
    def error(self) -> float:
        """Mean error of tokens per second on the points held out, as a share."""
        return _error(self.model, self.held_out)

    @property
    def fitted_error(self) -> float:
        return _error(self.model, self.fitted)

    def predicted(self, measurement: Measurement) -> float:
        """Tokens per second."""
        return _predicted(self.model, measurement)

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self.model),
            "mean_error_held_out": self.error,
            "mean_error_fitted": self.fitted_error,
            "num_fitted": len(self.fitted),
            "num_held_out": len(self.held_out),
            "points": [
                {
                    "num_running": m.point.num_running,
                    "length": m.point.length,
                    "is_held_out": m in self.held_out,
                    "held": m.held,
                    "kv_tokens": m.kv_tokens,
                    "tokens_per_s": m.throughput,
                    "predicted_tokens_per_s": self.predicted(m),
                    "step_s": list(m.step_s),
                    "fill_s": list(m.fill_s),
                }
                for m in (*self.fitted, *self.held_out)
            ],
        }


def grid(*, max_running: int, longest: int, kv_budget: int) -> list[LoadPoint]:
    """Load points that fit into the KV cache: 1, 2, 4, ... responses, at lengths that grow by a constant factor."""
    doubling = [1 << power for power in range(max_running.bit_length()) if 1 << power < max_running]
    shortest = min(SHORTEST, longest)
    growth = (longest / shortest) ** (1 / (NUM_LENGTHS - 1))
    lengths = sorted({round(shortest * growth**power) for power in range(NUM_LENGTHS)})
    points = [LoadPoint(n, length) for n in (*doubling, max_running) for length in lengths]
    return [point for point in points if point.num_running * point.length <= kv_budget]


def between(points: Sequence[LoadPoint], *, kv_budget: int, seed: int) -> list[LoadPoint]:
    """Random points within the range of ``points`` that are not among them, spread evenly on a logarithmic scale."""
    random = Random(seed)
    least, most = min(points), max(points)
    lengths = [point.length for point in points]
    found: dict[LoadPoint, None] = {}
    for _ in range(100 * NUM_HELD_OUT):
        point = LoadPoint(
            round(least.num_running * (most.num_running / least.num_running) ** random.random()),
            round(min(lengths) * (max(lengths) / min(lengths)) ** random.random()),
        )
        if point not in points and point.num_running * point.length <= kv_budget:
            found[point] = None
        if len(found) == NUM_HELD_OUT:
            break
    return list(found)


def fit(fitted: Sequence[Measurement], held_out: Sequence[Measurement]) -> EngineProfile:
    if len(fitted) < _LEAST_FITTED or len(held_out) < _LEAST_HELD_OUT:
        found = f"{len(fitted)} load points to fit and {len(held_out)} to check the fit with"
        raise ValueError(f"{found} are too few: allow more responses at the same time, or longer ones")
    costs = fit_engine([measurement.sample() for measurement in fitted], ErrorScale.MEASURED)
    footprint = sum(m.kv_tokens for m in fitted) / sum(m.held for m in fitted)
    return EngineProfile(
        model=replace(costs, prefill_s=_fit_prefill(costs, fitted)).to_model(k5=footprint),
        fitted=tuple(fitted),
        held_out=tuple(held_out),
    )


def _fit_prefill(costs: StepCosts, measurements: Sequence[Measurement]) -> float:
    """A response alone is filled by a prefill of all its tokens but one, and a step."""
    alone = [m for m in measurements if m.point.num_running == 1]
    seconds = [min(m.fill_s) - step_s(costs, m.point.length, 1) for m in alone]
    (prefill_s,) = fit_linear([[m.point.length - 1.0] for m in alone], seconds)
    return prefill_s


def _predicted(model: CostModel, measurement: Measurement) -> float:
    return model.throughput(kv_tokens=model.k5 * measurement.held, num_running=measurement.point.num_running)


def _error(model: CostModel, measurements: Sequence[Measurement]) -> float:
    return error([_predicted(model, m) for m in measurements], [m.throughput for m in measurements])
