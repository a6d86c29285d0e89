"""Costs are found again in the journals they produced, and predict a run they were not fitted to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sim.worlds import small_scenario
from tailrace.core.commands import Accumulate
from tailrace.core.costs import PrefillWork
from tailrace.core.events import InstanceLost, RolloutReported, StepTrained
from tailrace.core.ids import InstanceId, Version
from tailrace.core.journal import Entry
from tailrace.core.schedule import Schedule
from tailrace.observe.costs.fitting import CLASS_SHARE, PREFILL_SHARE, error, fit_prefill
from tailrace.observe.schedules.comparison import figures_of
from tailrace.sim.calibrate import Calibration, calibrate, predict, step_seconds
from tailrace.sim.calibrate import schedule_of as recorded_schedule
from tailrace.sim.calibrate import simulate as simulate_on
from tailrace.sim.fitting.machine_facts import MachineFacts
from tailrace.sim.named_schedule import schedule_of
from tailrace.sim.observations import Observations
from tailrace.sim.result import run_schedule, simulate
from tailrace.sim.scenario import Scenario

MACHINE = MachineFacts(
    prompt_length=20,
    max_response_length=500,
    kv_capacity=5000,
    max_running=8,
    num_prompts=100_000,
    num_reward_workers=3,
)


def scenario(**changes: object) -> Scenario:
    known = {"engine__k1": 2e-5, "engine__k2": 6e-3, "engine__k3": 2e-3, "engine__k4": 4e-3, "engine__prefill_s": 5e-4}
    return small_scenario(schedule__num_steps=12, engine__max_running=8, **(known | changes))


def schedule_without_queues(chosen: Scenario, name: str) -> Schedule:
    """An instance gets no more than it can run. If responses are queued inside it, the fit is less precise: with the
    costs below it finds 0.24 s for a prompt instead of 0.3 s."""
    return replace(schedule_of(chosen, name), max_in_flight=chosen.engine.max_running)


def record(chosen: Scenario, name: str, entries: list[Entry]) -> None:
    schedule = schedule_without_queues(chosen, name)
    run_schedule(schedule, chosen.world_costs(), chosen.make_lengths(), record=entries.append)


@pytest.fixture(scope="module")
def journal() -> list[Entry]:
    entries: list[Entry] = []
    simulate(scenario(), "sync", record=entries.append)
    return entries


@pytest.fixture(scope="module")
def calibration(journal: list[Entry]) -> Calibration:
    return calibrate([journal], MACHINE)


def test_the_costs_of_engine_and_trainer_are_found_again(calibration: Calibration) -> None:
    engine, trainer = calibration.costs.engine, calibration.costs.trainer.times(1 / calibration.stretch)
    for n, kv in ((1, 100), (3, 500), (8, 2000)):
        true = 2e-5 * kv + max(6e-3, 2e-3 * n) + 4e-3
        assert engine.step(kv, n) == pytest.approx(true, rel=0.05)
    assert engine.prefill_s == pytest.approx(5e-4, rel=0.2)
    assert (trainer.fixed_s, trainer.token_s) == (pytest.approx(1.0, rel=0.01), pytest.approx(1e-3, rel=0.01))
    assert calibration.costs.instance.pull_s == pytest.approx(0.5)
    assert calibration.engine_error < 0.05
    assert calibration.num_steps == 12


def test_the_run_it_was_fitted_to_is_predicted(journal: list[Entry], calibration: Calibration) -> None:
    assert error(predict(journal, calibration), step_seconds(journal)) < 0.03


def test_what_no_cost_stands_for_makes_all_steps_longer(journal: list[Entry], calibration: Calibration) -> None:
    delayed, late_s = [], 0.0
    for entry in journal:
        late_s += 3.0 * any(isinstance(command, Accumulate) for command in entry.commands)
        delayed.append(replace(entry, now=entry.now + late_s))
    found = calibrate([delayed], MACHINE)
    assert found.stretch > 1.05 * calibration.stretch
    assert sum(predict(delayed, found)) == pytest.approx(sum(step_seconds(delayed)), rel=0.02)


def test_a_run_that_was_stopped_early_has_the_costs_of_its_steps(
    journal: list[Entry], calibration: Calibration
) -> None:
    ends = [number for number, entry in enumerate(journal) if isinstance(entry.event, StepTrained)]
    assert calibrate([journal[: ends[5] + 1]], MACHINE).stretch == pytest.approx(calibration.stretch, rel=0.03)


def test_a_run_it_was_not_fitted_to_is_predicted(journal: list[Entry], calibration: Calibration) -> None:
    other = scenario(engine__num_instances=1)
    entries: list[Entry] = []
    simulate(other, "sync", record=entries.append)
    predicted = predict(journal, calibration, schedule_of(other, "sync"))
    assert sum(predicted) == pytest.approx(sum(step_seconds(entries)), rel=0.05)


@pytest.mark.parametrize("prefill_s", [PREFILL_SHARE * 2e-3, 4e-3])
def test_a_schedule_that_resumes_is_predicted_from_runs_that_do_not(prefill_s: float) -> None:
    """Prompts are shared. What a prefilled token costs, engines measure, or it is taken for a part of ``k3``."""
    resumes = {"engine__prefill_s": prefill_s, "engine__prefill_chunk": 200, "engine__prompt_s": 0.3}
    resumes["engine__prefill_batch_s"] = 4e-3
    chosen = scenario(engine__k2=0.0, engine__num_instances=1, **resumes)
    found: dict[str, list[Entry]] = {"sync": [], "active-partial": []}
    for name, entries in found.items():
        record(chosen, name, entries)
    fitted = found["sync"] if prefill_s == PREFILL_SHARE * 2e-3 else measuring(found["sync"], prefill_s)
    calibration = calibrate([fitted], replace(MACHINE, shares_prompts=True, prefill_chunk=200))
    engine = calibration.costs.engine
    assert (engine.prompt_s, engine.prefill_s) == (pytest.approx(0.3, rel=0.05), pytest.approx(prefill_s, rel=0.05))
    assert engine.prefill_batch_s == pytest.approx(4e-3, rel=0.1)
    predicted = predict(fitted, calibration, schedule_without_queues(chosen, "active-partial"))
    assert sum(predicted) == pytest.approx(sum(step_seconds(found["active-partial"])), rel=0.05)


def test_a_schedule_that_mixes_lengths_is_predicted_from_one_that_does_not() -> None:
    """The engine keeps length classes: rows are padded, and every class that has rows takes time."""
    classes = {"engine__length_classes": (64, 128, 256, 520), "engine__class_s": CLASS_SHARE * 4e-3}
    resumes = {"engine__prefill_s": PREFILL_SHARE * 2e-3, "engine__prefill_batch_s": 4e-3, "engine__prefill_chunk": 200}
    chosen = scenario(engine__k2=0.0, engine__k1=1e-4, engine__prompt_s=0.01, **classes, **resumes)
    found: dict[str, list[Entry]] = {"sync": [], "active-partial": []}
    for name, entries in found.items():
        record(chosen, name, entries)
    plain = replace(MACHINE, shares_prompts=True, prefill_chunk=200)
    machine = replace(plain, length_classes=(64, 128, 256, 520))
    real = sum(step_seconds(found["active-partial"]))
    off = []
    for known in (machine, plain):
        calibration = calibrate([found["sync"]], known)
        predicted = predict(found["sync"], calibration, schedule_without_queues(chosen, "active-partial"))
        off.append(sum(predicted) / real - 1)
    assert abs(off[0]) < 0.05
    assert off[1] < -0.1, "who does not know of the classes takes the steps for shorter"


def measuring(journal: list[Entry], prefill_s: float) -> list[Entry]:
    """As engines tell it that prefill their prompts in batches of many sizes, 4 ms each and so much a token;
    twice as slowly while an optimizer step runs."""
    found, work, is_training = [], PrefillWork(num_batches=0, num_tokens=0, seconds=0.0), False
    for number, entry in enumerate(journal):
        event, tokens = entry.event, 7 + 31 * number % 90
        if isinstance(event, RolloutReported):
            took_s = (4e-3 + prefill_s * tokens) * (2 if is_training else 1)
            work = PrefillWork(
                num_batches=work.num_batches + 1, num_tokens=work.num_tokens + tokens, seconds=work.seconds + took_s
            )
            event = replace(event, prefill=work)
        is_training = (is_training or any(isinstance(c, Accumulate) for c in entry.commands)) and not isinstance(
            event, StepTrained
        )
        found.append(replace(entry, event=event))
    return found


@pytest.fixture(scope="module")
def shared() -> dict[str, list[Entry]]:
    """Runs on devices that rollout and training share."""
    found: dict[str, list[Entry]] = {"sync": [], "one-step": [], "async-cap": []}
    chosen = scenario(engine__placement="shared", engine__overlap_slowdown=1.7, engine__start_s=3.0)
    for name, entries in found.items():
        simulate(chosen, name, record=entries.append)
    return found


def test_how_much_rollout_and_training_slow_each_other_down_is_found(shared: dict[str, list[Entry]]) -> None:
    costs = calibrate([shared["sync"], shared["one-step"]], MACHINE).costs
    assert costs.sharing.rollout == pytest.approx(1.7, rel=0.1)
    assert costs.sharing.training == pytest.approx(1.7, rel=0.1)
    assert (costs.trainer.fixed_s, costs.trainer.token_s) == (
        pytest.approx(1.0, rel=0.05),
        pytest.approx(1e-3, rel=0.05),
    )
    assert costs.instance.start_s == pytest.approx(3.0, abs=0.1)


def test_a_schedule_that_overlaps_is_predicted_from_two_others(shared: dict[str, list[Entry]]) -> None:
    fitted = [shared["sync"], shared["one-step"]]
    journal, _ = simulate_on(fitted, calibrate(fitted, MACHINE), recorded_schedule(shared["async-cap"]))
    assert figures_of(journal).wall_s == pytest.approx(figures_of(shared["async-cap"]).wall_s, rel=0.05)


def lending() -> list[Entry]:
    """A run whose rounds stream their groups, and lend half of the instances to the training of some pieces."""
    lends = {"preset": "stage-overlap", "lending": "fixed", "lend_at": 0.2}
    chosen = scenario(
        engine__placement="shared",
        engine__overlap_slowdown=1.5,
        trainer={"source": "a test", "fixed_s": 1.0, "token_s": 4e-3, "num_replicas": 2, "devices": 2},
        schedule={
            "source": "a test", "num_steps": 16, "rollout_batch_size": 12, "n_samples_per_prompt": 4,
            "variants": {"lends": lends},
        },
    )  # fmt: skip
    entries: list[Entry] = []
    simulate(chosen, "lends", record=entries.append)
    return entries


def test_a_piece_that_some_replicas_compute_does_not_make_a_token_more_expensive() -> None:
    entries = lending()
    pieces = [c for entry in entries for c in entry.commands if isinstance(c, Accumulate)]
    assert len([piece for piece in pieces if piece.replicas]) > 8, "the run lends"
    assert len(pieces) > 2 * 16, "the run streams"
    found = calibrate([entries], replace(MACHINE, num_replicas=2))
    trainer = found.costs.trainer.times(1 / found.stretch)
    assert (trainer.token_s, trainer.num_replicas) == (pytest.approx(4e-3, rel=0.05), 2)
    assert sum(predict(entries, found)) == pytest.approx(sum(step_seconds(entries)), rel=0.03)


def test_what_is_prefilled_beside_an_optimizer_step_says_nothing(shared: dict[str, list[Entry]]) -> None:
    seen = Observations(prompt_length=20)
    for entry in measuring(shared["one-step"], 4e-3):
        seen.feed(entry)
    assert 0 < len(seen.prefill) < sum(isinstance(entry.event, RolloutReported) for entry in shared["one-step"])
    found = fit_prefill(seen.prefill)
    assert found is not None
    assert (found.batch_s, found.token_s) == (pytest.approx(4e-3), pytest.approx(4e-3))


def test_too_little_to_fit_is_refused(journal: list[Entry]) -> None:
    with pytest.raises(ValueError, match="too few"):
        calibrate([journal[:20]], MACHINE)


def test_an_instance_that_starts_again_counts_what_it_prefills_from_zero() -> None:
    observed, number = Observations(prompt_length=20), InstanceId(0)

    def report(num_tokens: int) -> RolloutReported:
        work = PrefillWork(num_batches=num_tokens // 10, num_tokens=num_tokens, seconds=num_tokens / 100)
        return RolloutReported(instance=number, version=Version(0), prefill=work)

    for event in (report(50), report(80), InstanceLost(instance=number, reason="killed"), report(20), report(30)):
        observed.feed(Entry(now=1.0, event=event, commands=()))
    assert [work.num_tokens for work in observed.prefill] == [30, 10]


@pytest.mark.parametrize(
    ("decoding", "device", "has_rows"),
    [("plain", "cuda", True), ("paged", "cpu", False), ("auto", "cpu", True), ("auto", "cuda:0", False)],
)
def test_an_engine_with_pages_has_no_length_classes(decoding: str, device: str, has_rows: bool) -> None:
    config = {
        "model": {"device": device},
        "rollout": {
            "engine": "native", "decoding": decoding, "max_response_length": 64, "kv_tokens": None, "max_running": 4,
            "prefill_chunk": 64,
        },
        "data": {"max_prompt_length": 16},
        "reward": {"workers": 1},
    }  # fmt: skip
    assert bool(MachineFacts.of(config, num_prompts=1).length_classes) == has_rows
