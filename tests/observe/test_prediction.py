"""The cost model beside a run: it holds where it was measured, is found to be off where the engine is slower, and is
measured again from the run's own reports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sim.worlds import small_scenario
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.costs import NOTHING_KNOWN, CostModel
from tailrace.core.ids import InstanceId
from tailrace.core.journal import Entry
from tailrace.observe.costs.prediction import Prediction, SizeCosts
from tailrace.observe.metrics.rows import TIMED_GROUPS
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


def measured(found: Prediction) -> ev.CostsMeasured:
    event = found.measure()
    assert event is not None
    return event


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
    event = measured(found)
    model = event.costs
    assert event.error > found.tolerance > 0.1 > event.fitted_error
    assert model.k5 == 2.0
    assert not found.is_off, "what was heard before counts no more"
    for n, held in ((2, 300), (5, 800), (8, 2000)):
        true = MODEL.step_s(kv_tokens=held, num_running=n)
        assert model.step_s(kv_tokens=2.0 * held, num_running=n) == pytest.approx(true, rel=0.1)


def test_a_model_that_was_measured_is_held_against_what_comes_after(steady: list[Entry]) -> None:
    """As the run does it; whoever reads its journal later comes to the same."""
    found, posted = Prediction(costs=NOTHING_KNOWN, prompt_length=20, max_running=8), list[ev.CostsMeasured]()
    written: list[Entry] = []
    for entry in steady:
        found.feed(entry)
        written.append(entry)
        if found.is_off:
            posted.append(measured(found))
            written.append(Entry(now=entry.now, event=posted[-1], commands=()))
            found.feed(written[-1])
    assert len(posted) == 1, "once is enough"
    assert posted[0].error > 0.9
    assert max(rates.error for rates in found.rates().values()) < 0.1
    assert prediction(written, costs=NOTHING_KNOWN).metrics() == found.metrics()


def test_where_nothing_is_known_the_first_window_is_measured_whatever_it_shows() -> None:
    """An engine that happens to take a second a step."""
    entries = journal(steps=12, engine__k1=0.0, engine__k2=0.0, engine__k3=0.0, engine__k4=1.0, engine__prefill_s=0.01)
    assert prediction(entries, costs=NOTHING_KNOWN).is_off
    assert not prediction(entries, costs=CostModel(k1=0.0, k2=0.0, k3=0.0, k4=1.1)).is_off


def test_an_engine_that_only_computes_is_still_given_more_than_one_response() -> None:
    entries = journal(steps=12, engine__k1=0.0, engine__k2=0.0, engine__k3=2e-3, engine__k4=1e-9, engine__prefill_s=0.0)
    costs = measured(prediction(entries, costs=NOTHING_KNOWN)).costs
    assert costs.k4 >= costs.k3 > 0
    assert costs.gain(length=20, kv_tokens=20, num_running=1) > 0.3 * costs.ideal_gain(length=20)


def test_a_fit_that_does_not_even_fit_its_own_samples_is_not_believed(steady: list[Entry]) -> None:
    """Every other report comes half a minute late, as while kernels are compiled."""
    late, entries = 0.0, list[Entry]()
    for entry in steady:
        late += 30.0 if isinstance(entry.event, ev.RolloutReported) and len(entries) % 2 else 0.0
        entries.append(replace(entry, now=entry.now + late))
    found = prediction(entries, costs=NOTHING_KNOWN)
    assert found.is_off
    assert found.measure() is None
    assert found.costs == NOTHING_KNOWN
    assert not found.is_off, "it is tried again with new samples only"


def test_costs_say_how_many_responses_at_the_same_time_they_know(steady: list[Entry]) -> None:
    costs = measured(prediction(steady, costs=NOTHING_KNOWN)).costs
    assert costs.most_running == 8
    assert costs.is_guess(8)
    assert not costs.is_guess(7)
    assert not MODEL.is_guess(1_000), "given costs hold for every load"


def test_a_run_that_goes_on_listens_anew(steady: list[Entry]) -> None:
    found = prediction(steady, costs=NOTHING_KNOWN)
    assert found.is_off
    resumed = ev.RunResumed(limits=steady[0].event.schedule.limits, checkpoint=None)
    found.feed(Entry(now=steady[-1].now, event=resumed, commands=()))
    assert not found.is_off
    assert found.metrics() == {}


def test_rates_are_columns_of_a_row(steady: list[Entry]) -> None:
    found = prediction(steady)
    row, rates = found.metrics(), found.rates()
    for instance in (0, 1):
        assert row[f"perf/instance_{instance}/tokens_per_s"] == rates[InstanceId(instance)].measured
        assert row[f"perf/instance_{instance}/predicted_tokens_per_s"] == rates[InstanceId(instance)].predicted
    assert row["perf/prediction_error"] == max(each.error for each in rates.values())
    assert all(name.startswith(TIMED_GROUPS) for name in row)


def sized(entries: list[Entry], size: int) -> list[Entry]:
    """The same entries, of instances of this parallel size."""

    def named(command: do.Command) -> do.Command:
        return replace(command, parallel_size=size) if isinstance(command, do.OpenRound) else command

    return [replace(entry, commands=tuple(map(named, entry.commands))) for entry in entries]


def test_each_parallel_size_is_held_against_its_own_costs(steady: list[Entry]) -> None:
    """The rounds of size 2 take twice as long a step, and only the costs of size 2 say so."""
    slower = CostModel(k1=4e-5, k2=12e-3, k3=4e-3, k4=8e-3, prefill_s=1e-3)
    costs = {f"engine__{name}": getattr(slower, name) for name in ("k1", "k2", "k3", "k4", "prefill_s")}
    of_two = journal(steps=12, **costs)
    later = steady[-1].now + 1.0
    entries = sized(steady, 1) + [replace(each, now=each.now + later) for each in sized(of_two, 2)]

    def followed(known_of_two: CostModel) -> Prediction:
        sizes = {1: SizeCosts(MODEL, 8), 2: SizeCosts(known_of_two, 8)}
        found = Prediction(costs=MODEL, prompt_length=20, max_running=8, size=1, sizes=sizes)
        for entry in entries:
            if not isinstance(entry.event, ev.RunStarted) or found.size == 1:
                found.feed(entry)
        return found

    right, wrong = followed(slower), followed(MODEL)
    assert right.size == wrong.size == 2
    assert not right.is_off
    assert wrong.is_off
    event = measured(wrong)
    assert event.size == 2
    assert event.costs.step_s(kv_tokens=800, num_running=5) == pytest.approx(
        slower.step_s(kv_tokens=800, num_running=5), rel=0.1
    )
    wrong.feed(Entry(now=0.0, event=replace(event, size=1, costs=NOTHING_KNOWN), commands=()))
    assert wrong.costs == event.costs, "what was measured of another size changes nothing here"
