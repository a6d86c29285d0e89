"""From measured engine steps to the coefficients of the cost model (``core/costs.py``), and the error of it.

    seconds = sum(steps * (k1 * held + k3 * max(n*, n) + k4)) + prefill_s * prefilled

over samples of some steps each. It is linear for a given turning point ``n* = k2 / k3``, so every turning point that
occurs is tried and the best kept. Costs are never negative.

An engine that computes a prompt once for all members of a group has a cost per prompt, ``prompt_s``, and prefills
nothing else but the tokens of responses that go on. How long prompts are does not matter to that fit. What prefilling
those costs, steps do not tell where nothing goes on. It is measured apart (``fit_prefill``), or a batch is taken to
cost what a step does whatever it computes, ``k4``, and a token a part of what one more response in a step does,
``PREFILL_SHARE * k3``.

Where the engine keeps length classes (``core/length_classes.py``), ``held`` is what attention covers, and every class
that has rows adds ``class_s = CLASS_SHARE * k4`` to a step. A run or two do not tell these apart: in most steps one
class has rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean
from typing import Protocol, TypeVar

import numpy as np

from tailrace.core.costs import PrefillWork, StepCoefficients, step_s
from tailrace.observe.token_clock import EngineSample

PREFILL_SHARE = 0.4
"""Sequences that are prefilled together share what a step does for each response: mask, sampling, bookkeeping."""
CLASS_SHARE = 0.3
"""Of what a step does whatever it computes: attention is called once for each length class that has rows."""
_T = TypeVar("_T")
_ROUNDS = 3
"""Of fitting with the weights that the fit before gave."""
_MOST_SAMPLES, _MOST_TURNS = 512, 12
_LEAST_SHARE = 0.1
"""Of its seconds: a sample that the costs call shorter weighs no more than this."""


class Costs(StepCoefficients, Protocol):
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
    """Seconds per batch of resumed responses that is prefilled, beside those of its tokens."""
    prompt_s: float | None = None
    """Seconds per prompt that the members of a group share; None: each member prefills it for itself."""


def fit_steps(
    samples: Sequence[EngineSample],
    *,
    is_relative: bool = False,
    shares_prompts: bool = False,
    prefill: PrefillCosts | None = None,
) -> StepCosts:
    """The costs under which the squares of the errors add up to least; ``is_relative``: of the errors as shares.

    ``prefill``: where prompts are shared and it is known.
    """
    seconds = np.array([sample.seconds for sample in samples])
    weights = 1.0 / seconds if is_relative else np.ones_like(seconds)
    if prefill is None:
        return _fit(samples, weights, _turns(samples), shares_prompts)
    rest = [prefill.taken_off(sample) for sample in samples]
    found = _fit(rest, weights, _turns(samples), shares_prompts)
    return replace(found, prefill_s=prefill.token_s, prefill_batch_s=prefill.batch_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillCosts:
    batch_s: float
    """Seconds of every batch, whatever it computes."""
    token_s: float

    def taken_off(self, sample: EngineSample) -> EngineSample:
        """The sample as if nothing had gone on."""
        seconds = sample.seconds - self.batch_s * sample.resumed_batches - self.token_s * sample.resumed
        return replace(sample, seconds=max(0.0, seconds), resumed=0, resumed_batches=0)


def fit_prefill(work: Sequence[PrefillWork]) -> PrefillCosts | None:
    """None where nothing was measured, or all batches were alike."""
    columns = np.array([[part.num_batches, part.num_tokens] for part in work if part.num_tokens], dtype=float)
    if not len(columns) or np.linalg.matrix_rank(columns) < 2:
        return None
    seconds = np.array([part.seconds for part in work if part.num_tokens])
    batch_s, token_s = map(float, non_negative(columns, seconds))
    return PrefillCosts(batch_s=batch_s, token_s=token_s)


def fit_jittery(samples: Sequence[EngineSample]) -> StepCosts:
    """The same for samples whose ends are known roughly: the errors are shares of what the costs say.

    News that comes late makes one sample longer and the next one shorter. As shares of what was measured the short ones
    would weigh most, and the costs come out far too low; as shares of what such a load takes the two make up for
    each other. It is done while a run waits, so not every sample and turning point is tried where there are many.
    """
    samples = _some(samples, _MOST_SAMPLES)
    turns = _some(_turns(samples), _MOST_TURNS)
    seconds = np.array([sample.seconds for sample in samples])
    costs = _fit(samples, np.ones_like(seconds), turns)
    for _ in range(_ROUNDS):
        expected = np.array([sample_s(costs, sample) for sample in samples])
        costs = _fit(samples, 1.0 / np.maximum(expected, _LEAST_SHARE * seconds), turns)
    return costs


def _turns(samples: Sequence[EngineSample]) -> list[int]:
    return [0, *sorted({n for sample in samples for _, _, n in sample.parts})]


def _some(values: Sequence[_T], most: int) -> Sequence[_T]:
    """At most so many, evenly from first to last."""
    return values[:: -(-len(values) // most)]


def _fit(
    samples: Sequence[EngineSample], weights: np.ndarray, turns: Sequence[int], shares_prompts: bool = False
) -> StepCosts:
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
    """What k1, k3, k4 and prefill_s, or prompt_s, are multiplied with."""
    held = sum(steps * held for steps, held, _ in sample.parts)
    running = sum(steps * max(turn, n) for steps, _, n in sample.parts)
    always = sample.steps + CLASS_SHARE * sample.class_steps
    if shares_prompts:
        return [held, running + PREFILL_SHARE * sample.resumed, always + sample.resumed_batches, sample.prompts]
    return [held, running, always, sample.prefilled]


def sample_s(costs: Costs, sample: EngineSample) -> float:
    """Seconds that the sample's steps should have taken."""
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
    """Least squares without negative coefficients, exactly: the best of the plain solutions over some of the columns.

    For a handful of columns. One that is zero throughout gets a coefficient of zero.
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
