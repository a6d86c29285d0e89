"""Fits the coefficients of the cost model (``core/costs.py``) to measured seconds, and tells the error of a fit.

Three callers share this module. They differ in where their samples come from and in which errors matter:

    `tailrace profile`   engine_profile.py   ErrorScale.MEASURED   load points measured one by one
    a run that steers    prediction.py       ErrorScale.EXPECTED   samples whose ends are known roughly
    `tailrace simulate`  sim/calibrate.py    ErrorScale.SECONDS    whole journals, whose seconds must add up

The seconds of a sample of engine steps are

    sum(steps * (k1 * held + k3 * max(n*, n) + k4)) + prefill_s * prefilled

with ``held`` tokens in the KV cache and ``n`` responses running. This is linear for a given turning point
``n* = k2 / k3``, so the fit tries every turning point that occurs and keeps the best. Costs are never negative.

An engine that computes a prompt once for all members of a group has a cost per prompt, ``prompt_s``, and prefills only
the tokens of resumed responses. If no response is resumed, steps do not show what prefilling costs. It is then measured
separately (``fit_prefill``), or assumed: a batch costs ``k4``, a token ``PREFILL_SHARE * k3``.

If the engine keeps length classes (``core/length_classes.py``), ``held`` is what attention covers, and every class that
has rows adds ``class_s = CLASS_SHARE * k4`` to a step. One or two runs cannot tell these two costs apart, because in
most steps one class has rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import combinations
from statistics import fmean
from typing import Protocol, TypeVar

import numpy as np

from tailrace.core.costs import CostModel, PrefillWork, StepCoefficients, step_s
from tailrace.observe.costs.token_clock import EngineSample

PREFILL_SHARE = 0.4
"""Cost of prefilling a token, as a share of ``k3``: sequences that are prefilled together share mask, sampling and
bookkeeping."""
CLASS_SHARE = 0.3
"""Cost of a length class that has rows, as a share of ``k4``: attention is called once for each."""
_T = TypeVar("_T")
_ROUNDS = 3
"""How often a fit is repeated with the weights that the fit before gave."""
_MOST_SAMPLES, _MOST_TURNS = 512, 12
_LEAST_SHARE = 0.1
"""A sample is weighted as if the costs said at least this share of its measured seconds."""


class ErrorScale(Enum):
    """Which errors a fit makes small (it minimises the sum of their squares)."""

    SECONDS = "seconds"
    """Errors in seconds: long samples matter most."""
    MEASURED = "measured"
    """Errors as shares of the measured seconds: every sample matters equally."""
    EXPECTED = "expected"
    """Errors as shares of the seconds that the fitted costs predict, for samples whose ends are known roughly.

    A late report makes one sample longer and the next one shorter. As shares of the measured seconds the short ones
    would matter most and the costs come out far too low; as shares of the predicted seconds the two balance.
    """


class FittedCosts(StepCoefficients, Protocol):
    @property
    def class_s(self) -> float: ...
    @property
    def prefill_s(self) -> float: ...
    @property
    def prefill_batch_s(self) -> float: ...
    @property
    def prompt_s(self) -> float | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Costs of an engine, per token held (``CostModel`` has them per token of the KV cache)."""

    k1: float
    """Seconds per step and token held."""
    k2: float
    k3: float
    k4: float
    class_s: float = 0.0
    """Seconds per step and length class that has rows."""
    prefill_s: float
    """Seconds per prefilled token."""
    prefill_batch_s: float = 0.0
    """Seconds per batch of resumed responses that is prefilled, in addition to those of its tokens."""
    prompt_s: float | None = None
    """Seconds per prompt that the members of a group share; None: each member prefills it for itself."""

    @classmethod
    def of_model(cls, model: CostModel) -> StepCosts:
        """``k5``: tokens of the KV cache that one token held takes up."""
        return cls(k1=model.k1 * model.k5, k2=model.k2, k3=model.k3, k4=model.k4, prefill_s=model.prefill_s)

    def to_model(self, *, k5: float) -> CostModel:
        return CostModel(k1=self.k1 / k5, k2=self.k2, k3=self.k3, k4=self.k4, k5=k5, prefill_s=self.prefill_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillCosts:
    batch_s: float
    """Seconds of every batch, whatever it computes."""
    token_s: float

    def taken_off(self, sample: EngineSample) -> EngineSample:
        """The sample without the prefill of resumed responses."""
        seconds = sample.seconds - self.batch_s * sample.resumed_batches - self.token_s * sample.resumed
        return replace(sample, seconds=max(0.0, seconds), resumed=0, resumed_batches=0)


def fit_engine(
    samples: Sequence[EngineSample],
    scale: ErrorScale,
    *,
    shares_prompts: bool = False,
    prefill: PrefillCosts | None = None,
) -> StepCosts:
    """The costs with the smallest errors.

    ``prefill``: costs of prefilling that were measured separately, for engines that share prompts.
    """
    if scale is ErrorScale.EXPECTED:  # it is done while a run waits, so not all samples and turning points are tried
        samples = _some(samples, _MOST_SAMPLES)
    turns = _some(_turns(samples), _MOST_TURNS) if scale is ErrorScale.EXPECTED else _turns(samples)
    seconds = np.array([sample.seconds for sample in samples])
    weights = 1.0 / seconds if scale is ErrorScale.MEASURED else np.ones_like(seconds)
    if prefill is not None:
        samples = [prefill.taken_off(sample) for sample in samples]
    costs = _fit(samples, weights, turns, shares_prompts)
    for _ in range(_ROUNDS if scale is ErrorScale.EXPECTED else 0):
        expected = np.array([sample_s(costs, sample) for sample in samples])
        costs = _fit(samples, 1.0 / np.maximum(expected, _LEAST_SHARE * seconds), turns, shares_prompts)
    return costs if prefill is None else replace(costs, prefill_s=prefill.token_s, prefill_batch_s=prefill.batch_s)


def fit_prefill(work: Sequence[PrefillWork]) -> PrefillCosts | None:
    """None where nothing was measured, or all batches had the same size."""
    measured = [part for part in work if part.num_tokens]
    rows = [[part.num_batches, part.num_tokens] for part in measured]
    if not rows or np.linalg.matrix_rank(np.array(rows)) < 2:
        return None
    batch_s, token_s = fit_linear(rows, [part.seconds for part in measured])
    return PrefillCosts(batch_s=batch_s, token_s=token_s)


def fit_linear(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Seconds of each unit of work, from how many units of each kind (a row) took how many seconds in all."""
    return [float(value) for value in non_negative(np.array(rows, dtype=float), np.array(seconds, dtype=float))]


def _turns(samples: Sequence[EngineSample]) -> Sequence[int]:
    return [0, *sorted({n for sample in samples for _, _, n in sample.parts})]


def _some(values: Sequence[_T], most: int) -> Sequence[_T]:
    """At most ``most`` of the values, evenly from first to last."""
    return values[:: -(-len(values) // most)]


def _fit(samples: Sequence[EngineSample], weights: np.ndarray, turns: Sequence[int], shares_prompts: bool) -> StepCosts:
    seconds = np.array([sample.seconds for sample in samples])
    best: tuple[float, int, np.ndarray] | None = None
    for turn in turns:
        columns = np.array([_columns(sample, turn, shares_prompts) for sample in samples]) * weights[:, None]
        solution = non_negative(columns, seconds * weights)
        residual = float(np.sum((columns @ solution - seconds * weights) ** 2))
        if best is None or residual < best[0] * (1 - 1e-9):
            best = (residual, turn, solution)
    assert best is not None
    _, turn, solution = best
    k1, k3, k4, last = map(float, solution)
    class_s = CLASS_SHARE * k4 if any(sample.class_steps for sample in samples) else 0.0
    step = {"k1": k1, "k2": k3 * turn, "k3": k3, "k4": k4, "class_s": class_s}
    if shares_prompts:
        return StepCosts(**step, prefill_s=PREFILL_SHARE * k3, prefill_batch_s=k4, prompt_s=last)
    return StepCosts(**step, prefill_s=last)


def _columns(sample: EngineSample, turn: int, shares_prompts: bool) -> list[float]:
    """The factors of k1, k3, k4 and of prefill_s or prompt_s."""
    held = sum(steps * held for steps, held, _ in sample.parts)
    running = sum(steps * max(turn, n) for steps, _, n in sample.parts)
    always = sample.steps + CLASS_SHARE * sample.class_steps
    if shares_prompts:
        return [held, running + PREFILL_SHARE * sample.resumed, always + sample.resumed_batches, sample.prompts]
    return [held, running, always, sample.prefilled]


def sample_s(costs: FittedCosts, sample: EngineSample) -> float:
    """Seconds that the costs predict for the sample's steps."""
    decode_s = sum(steps * step_s(costs, held, n) for steps, held, n in sample.parts)
    decode_s += costs.class_s * sample.class_steps
    if costs.prompt_s is None:
        return decode_s + costs.prefill_s * sample.prefilled
    prefill_s = costs.prefill_batch_s * sample.resumed_batches + costs.prefill_s * sample.resumed
    return decode_s + prefill_s + costs.prompt_s * sample.prompts


def error(predicted: Sequence[float], real: Sequence[float]) -> float:
    """Mean absolute percentage error, as a share."""
    return fmean(abs(p - r) / r for p, r in zip(predicted, real, strict=True) if r > 0)


def non_negative(columns: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Exact least squares without negative coefficients: the best of the plain solutions over subsets of the columns.

    For a handful of columns. A column that is zero throughout gets a coefficient of zero.
    """
    num_columns = columns.shape[1]
    scale = np.maximum(np.abs(columns).max(axis=0), 1e-12)
    best, least = np.zeros(num_columns), float(np.sum(target**2))
    for size in range(num_columns, 0, -1):
        for chosen in combinations(range(num_columns), size):
            used = list(chosen)
            found = np.linalg.lstsq(columns[:, used] / scale[used], target, rcond=None)[0] / scale[used]
            residual = float(np.sum((columns[:, used] @ found - target) ** 2))
            if (found >= 0).all() and residual < least:
                best, least = np.zeros(num_columns), residual
                best[used] = found
        if size == num_columns and best.any():
            break  # what is best without the condition is best with it
    return best
