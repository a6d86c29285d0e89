"""The cost model beside a run: it holds where it was measured, is found to be off where the engine is slower, and is
measured again from the run's own reports."""

from __future__ import annotations

from typing import Any

import pytest

from sim.worlds import small_scenario
from tailrace.core.costs import CostModel
from tailrace.core.ids import InstanceId
from tailrace.core.journal import Entry
from tailrace.observe.prediction import Prediction
from tailrace.sim.result import simulate

KNOWN = {"engine__k1": 2e-5, "engine__k2": 6e-3, "engine__k3": 2e-3, "engine__k4": 4e-3, "engine__prefill_s": 5e-4}
MODEL = CostModel(k1=2e-5, k2=6e-3, k3=2e-3, k4=4e-3, prefill_s=5e-4)


def journal(*, steps: int, **changes: Any) -> list[Entry]:
    entries: list[Entry] = []
    scenario = small_scenario(schedule__num_steps=steps, engine__max_running=8, **(KNOWN | changes))
    simulate(scenario, "sync", record=entries.append)
    return entries


def prediction(entries: list[Entry], costs: CostModel = MODEL) -> Prediction:
    found = Prediction(costs=costs, prompt_length=20, max_running=8)
    for entry in entries:
        found.feed(entry)
    return found


@pytest.fixture(scope="module")
def steady() -> list[Entry]:
    return journal(steps=12)


def test_an_engine_like_its_model_is_predicted(steady: list[Entry]) -> None:
    found = prediction(steady)
    assert set(found.rates()) == {InstanceId(0), InstanceId(1)}
    for rates in found.rates().values():
        assert rates.predicted == pytest.approx(rates.measured, rel=0.1)
        assert rates.error < 0.1
    assert not found.is_off


def test_nothing_is_said_before_enough_was_heard(steady: list[Entry]) -> None:
    found = prediction(steady[: len(steady) // 40], costs=CostModel(k1=1.0, k2=1.0, k3=1.0, k4=1.0))
    assert found.rates() == {}
    assert not found.is_off
    with pytest.raises(ValueError, match="too few to fit"):
        found.measure()


def test_a_slower_engine_is_noticed_and_its_model_found_in_the_reports(steady: list[Entry]) -> None:
    slow = [{"kind": "slow", "instance": 1, "at": 0.0, "until": 1e9, "factor": 2.0}]
    entries = journal(steps=12, faults=slow)
    found = prediction(entries)
    assert found.is_off
    assert found.rates()[InstanceId(0)].error < 0.1
    assert found.rates()[InstanceId(1)].error > found.tolerance


def test_a_model_that_is_off_everywhere_is_found_again_in_the_reports(steady: list[Entry]) -> None:
    found = prediction(steady, costs=CostModel(k1=1e-5, k2=1e-3, k3=5e-4, k4=1e-3, k5=2.0))
    assert found.is_off
    measured = found.measure()
    model = measured.costs
    assert measured.error > found.tolerance > 0.1 > measured.fitted_error
    assert model.k5 == 2.0
    assert not found.is_off, "what was heard before counts no more"
    for n, held in ((2, 300), (5, 800), (8, 2000)):
        true = MODEL.step_s(kv_tokens=held, num_running=n)
        assert model.step_s(kv_tokens=2.0 * held, num_running=n) == pytest.approx(true, rel=0.1)
