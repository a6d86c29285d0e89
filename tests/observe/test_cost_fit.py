"""Least squares without negative coefficients, and the costs behind measured steps."""

from __future__ import annotations

from dataclasses import asdict
from random import Random

import numpy as np
import pytest

from tailrace.core.costs import PrefillWork
from tailrace.observe.costs.fitting import (
    PREFILL_SHARE,
    ErrorScale,
    PrefillCosts,
    StepCosts,
    error,
    fit_engine,
    fit_linear,
    fit_prefill,
    non_negative,
    sample_s,
)
from tailrace.observe.costs.token_clock import EngineSample

COSTS = StepCosts(k1=2e-6, k2=4e-3, k3=5e-4, k4=1e-3, prefill_s=3e-5)


@pytest.mark.parametrize("seed", range(20))
def test_no_step_from_the_solution_makes_it_better(seed: int) -> None:
    """The conditions of Kuhn and Tucker: no slope where a coefficient is free, none downwards where it is zero."""
    random = np.random.default_rng(seed)
    columns, target = random.normal(size=(12, 4)), random.normal(size=12)
    solution = non_negative(columns, target)
    slope = columns.T @ (columns @ solution - target)
    assert (solution >= 0).all()
    assert np.abs(slope[solution > 0]).max(initial=0.0) < 1e-9
    assert slope.min() > -1e-9


def test_a_column_of_zeros_has_no_coefficient() -> None:
    assert non_negative(np.array([[1.0, 0.0], [2.0, 0.0]]), np.array([3.0, 6.0])) == pytest.approx([3.0, 0.0])


@pytest.mark.parametrize("scale", ErrorScale)
def test_costs_are_found_again_in_samples_of_several_loads(scale: ErrorScale) -> None:
    found = fit_engine(several_loads(), scale)
    for name in ("k1", "k2", "k3", "k4", "prefill_s"):
        assert getattr(found, name) == pytest.approx(getattr(COSTS, name), rel=1e-6)


def several_loads() -> list[EngineSample]:
    random, samples = Random(0), []
    for n in (1, 2, 4, 8, 16, 32, 64):
        for held in (100, 1000, 10_000):
            parts = [(4, held, n), (8, held / 2, max(1, n // 2))]
            sample = EngineSample(steps=12, prefilled=random.randrange(500), parts=parts)
            sample.seconds = sample_s(COSTS, sample)
            samples.append(sample)
    return samples


def test_news_that_comes_late_leads_to_no_costs_that_are_far_too_low() -> None:
    """Of each load one sample ends late, and the next is so much shorter."""
    samples = []
    for late, early in zip(several_loads(), several_loads(), strict=True):
        delay_s = 0.95 * early.seconds
        late.seconds, early.seconds = late.seconds + delay_s, early.seconds - delay_s
        samples += [late, early]
    true = [sample_s(COSTS, sample) for sample in samples]
    assert error([sample_s(fit_engine(samples, ErrorScale.EXPECTED), sample) for sample in samples], true) < 0.02
    plain = fit_engine(samples, ErrorScale.MEASURED)
    assert error([sample_s(plain, sample) for sample in samples], true) > 0.5


def test_many_samples_are_thinned_evenly() -> None:
    samples = several_loads() * 100
    assert fit_engine(samples, ErrorScale.EXPECTED).k3 == pytest.approx(COSTS.k3, rel=1e-6)


def test_a_cost_model_and_the_costs_of_steps_are_turned_into_each_other() -> None:
    model = COSTS.to_model(k5=1.25)
    assert model.k1 == pytest.approx(COSTS.k1 / 1.25)
    assert asdict(StepCosts.of_model(model)) == pytest.approx(asdict(COSTS))


def test_a_linear_cost_is_found_without_negative_parts() -> None:
    assert fit_linear([[1, 10], [1, 30]], [3.0, 7.0]) == pytest.approx([1.0, 0.2])
    assert fit_linear([[1, 10], [1, 30]], [1.0, 9.0])[0] == 0.0


@pytest.mark.parametrize("share", [None, 0.1, 3.0])
def test_a_prompt_that_a_group_shares_has_a_cost_of_its_own(share: float | None) -> None:
    """With costs of prefilled tokens that were measured, or what they are taken for."""
    prefill = None if share is None else PrefillCosts(batch_s=2e-3, token_s=share * 5e-4)
    prefill_s, batch_s = (PREFILL_SHARE * 5e-4, 1e-3) if prefill is None else (prefill.token_s, prefill.batch_s)
    known = StepCosts(k1=2e-6, k2=0.0, k3=5e-4, k4=1e-3, prefill_s=prefill_s, prefill_batch_s=batch_s, prompt_s=7e-3)
    samples = []
    for number, (n, held) in enumerate((n, held) for n in (1, 4, 16, 64) for held in (100, 1000, 10_000)):
        sample = EngineSample(steps=9, prefilled=10**6, prompts=number % 5, resumed=number % 7, parts=[(9, held, n)])
        sample.resumed_batches = number % 2
        sample.seconds = sample_s(known, sample)
        samples.append(sample)
    found = fit_engine(samples, ErrorScale.SECONDS, shares_prompts=True, prefill=prefill)
    for name in ("k1", "k2", "k3", "k4", "prefill_s", "prefill_batch_s", "prompt_s"):
        assert getattr(found, name) == pytest.approx(getattr(known, name), rel=1e-6)


def test_a_prefilled_token_costs_what_a_longer_batch_takes_longer() -> None:
    work = [
        PrefillWork(num_batches=batches, num_tokens=tokens, seconds=2e-3 * batches + 4e-5 * tokens)
        for batches, tokens in ((1, 11), (3, 40), (2, 176), (0, 0), (1, 506))
    ]
    found = fit_prefill(work)
    assert found is not None
    assert (found.batch_s, found.token_s) == (pytest.approx(2e-3), pytest.approx(4e-5))


def test_what_nobody_measured_or_no_two_batches_tell_apart_is_not_fitted() -> None:
    assert fit_prefill([]) is None
    assert fit_prefill([PrefillWork(num_batches=0, num_tokens=0, seconds=0.0)]) is None
    assert fit_prefill([PrefillWork(num_batches=1, num_tokens=10, seconds=s) for s in (0.5, 0.1)]) is None


def test_error_is_a_mean_share() -> None:
    assert error([1.1, 1.8], [1.0, 2.0]) == pytest.approx(0.1)
