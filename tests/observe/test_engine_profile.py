"""The cost model is found again in measurements of a known engine, and held to loads it was not fitted to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest

from tailrace.core.costs import CostModel
from tailrace.observe.costs.engine_profile import LoadPoint, Measurement, between, fit, grid

ENGINE = CostModel(k1=2e-7, k2=3.2e-3, k3=2e-4, k4=1e-3, k5=1.5)
PREFILL_S = 4e-5
BUDGET = 20_000
GRID = grid(max_running=96, longest=700, kv_budget=BUDGET)
HELD_OUT = between(GRID, kv_budget=BUDGET, seed=0)


def measured(points: Iterable[LoadPoint], *, disturbed: float = 0.0, jitter: float = 0.0) -> list[Measurement]:
    """As ``ENGINE`` would have it where other work makes a part of the visits up to three times as long."""
    random = Random(0)
    found = []
    for point in points:
        held = point.num_running * point.length
        step_s = ENGINE.step_s(kv_tokens=ENGINE.k5 * held, num_running=point.num_running)
        visits = [
            step_s
            * random.lognormvariate(0.0, jitter)
            * (random.uniform(1.0, 3.0) if random.random() < disturbed else 1.0)
            for _ in range(7)
        ]
        fill_s = step_s + PREFILL_S * (point.length - 1)
        found.append(
            Measurement(point=point, step_s=tuple(visits), fill_s=(fill_s,), held=held, kv_tokens=ENGINE.k5 * held)
        )
    return found


def test_coefficients_are_found_again() -> None:
    profile = fit(measured(GRID), measured(HELD_OUT))
    for name in ("k1", "k2", "k3", "k4", "k5"):
        assert getattr(profile.model, name) == pytest.approx(getattr(ENGINE, name), rel=0.05)
    assert profile.model.prefill_s == pytest.approx(PREFILL_S, rel=0.05)
    assert profile.error < 0.01


def test_a_machine_that_is_busy_more_than_half_the_time_is_borne() -> None:
    profile = fit(*(measured(points, disturbed=0.6, jitter=0.02) for points in (GRID, HELD_OUT)))
    assert profile.error < 0.08
    for name in ("k1", "k3"):
        assert getattr(profile.model, name) == pytest.approx(getattr(ENGINE, name), rel=0.2)


def test_the_error_is_that_of_the_points_held_out() -> None:
    fitted, held_out = measured(GRID), measured(HELD_OUT)
    slower = [replace(m, step_s=tuple(2 * seconds for seconds in m.step_s)) for m in held_out]
    profile = fit(fitted, slower)
    assert profile.error == pytest.approx(1.0, abs=0.02)
    assert profile.fitted_error < 0.01
    assert profile.to_dict()["mean_error_held_out"] == profile.error


def test_every_point_is_told_with_its_visits() -> None:
    points = fit(measured(GRID), measured(HELD_OUT)).to_dict()["points"]
    assert [p["is_held_out"] for p in points].count(True) == len(HELD_OUT)
    assert len(points) == len(GRID) + len(HELD_OUT)
    assert all(len(p["step_s"]) == 7 for p in points)


@pytest.mark.parametrize(("num_fitted", "num_held_out"), [(3, 16), (20, 1)])
def test_too_few_points_are_refused(num_fitted: int, num_held_out: int) -> None:
    with pytest.raises(ValueError, match="too few: allow more responses"):
        fit(measured(GRID[:num_fitted]), measured(HELD_OUT[:num_held_out]))


def test_the_grid_covers_the_range_that_the_cache_holds() -> None:
    assert {point.num_running for point in GRID} == {1, 2, 4, 8, 16, 32, 64, 96}
    assert {point.length for point in GRID if point.num_running == 1} >= {16, 700}
    assert max(point.num_running * point.length for point in GRID) <= BUDGET
    assert grid(max_running=1, longest=8, kv_budget=8) == [LoadPoint(1, 8)]


def test_points_held_out_lie_in_the_range_and_not_on_the_grid() -> None:
    assert len(HELD_OUT) == 16
    assert not set(HELD_OUT) & set(GRID)
    for point in HELD_OUT:
        assert 1 <= point.num_running <= 96
        assert 16 <= point.length <= 700
        assert point.num_running * point.length <= BUDGET
