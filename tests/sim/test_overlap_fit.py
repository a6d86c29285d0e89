"""Costs and slowdowns from runs in which training and rollout ran together, seldom or always."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sim.worlds import small_scenario
from tailrace.core.commands import Accumulate
from tailrace.core.journal import Entry
from tailrace.core.schedule import Placement
from tailrace.observe.schedules.comparison import figures_of
from tailrace.sim.calibrate import calibrate, schedule_of, simulate
from tailrace.sim.fitting.machine_facts import MachineFacts
from tailrace.sim.fitting.trainer import fit_trainer
from tailrace.sim.named_schedule import schedule_of as named_schedule
from tailrace.sim.observations import Observations, TrainingSample
from tailrace.sim.result import run_schedule
from tailrace.sim.world import Sharing

MACHINE = MachineFacts(
    prompt_length=20,
    max_response_length=500,
    kv_capacity=5000,
    max_running=8,
    num_prompts=100_000,
    num_reward_workers=3,
)
SLOWDOWN, PIECE_S, FINISH_S, TOKEN_S = 1.7, 0.3, 1.0, 2e-3


def recorded(preset: str, placement: Placement = Placement.SHARED) -> list[Entry]:
    chosen = small_scenario(
        schedule__num_steps=12,
        schedule__rollout_batch_size=12,
        engine__max_running=8,
        engine__placement=placement.value,
        engine__overlap_slowdown=SLOWDOWN,
        trainer={"source": "a test", "fixed_s": FINISH_S, "token_s": TOKEN_S},
    )
    costs, entries = chosen.world_costs(), list[Entry]()
    costs = replace(costs, trainer=replace(costs.trainer, piece_s=PIECE_S))
    run_schedule(named_schedule(chosen, preset), costs, chosen.make_lengths(), record=entries.append)
    return entries


@pytest.fixture(scope="module")
def runs() -> dict[str, list[Entry]]:
    return {name: recorded(name) for name in ("sync", "stage-overlap", "one-step")}


def seconds_per_step(entries: Sequence[Entry]) -> float:
    return figures_of(entries).seconds_per_step


def observed(entries: Sequence[Entry]) -> Observations:
    seen = Observations(prompt_length=20)
    for entry in entries:
        seen.feed(entry)
    return seen


def test_the_pieces_of_a_streamed_run_tell_their_costs_and_the_slowdown(runs: dict[str, list[Entry]]) -> None:
    entries = runs["stage-overlap"]
    assert sum(isinstance(c, Accumulate) for entry in entries for c in entry.commands) > 3 * 12, "it is streamed"
    found = calibrate([entries], MACHINE)
    trainer = found.costs.trainer.times(1 / found.stretch)
    assert trainer.fixed_s == pytest.approx(FINISH_S, rel=0.01)
    assert trainer.piece_s == pytest.approx(PIECE_S, rel=0.1)
    assert trainer.token_s == pytest.approx(TOKEN_S, rel=0.05)
    assert found.costs.sharing.training == pytest.approx(SLOWDOWN, rel=0.1)
    assert not found.is_training_assumed


@pytest.mark.parametrize("name", ["sync", "one-step"])
def test_a_streamed_run_predicts_runs_that_are_not(runs: dict[str, list[Entry]], name: str) -> None:
    entries = runs["stage-overlap"]
    journal, _ = simulate([entries], calibrate([entries], MACHINE), schedule_of(runs[name]))
    assert seconds_per_step(journal) == pytest.approx(seconds_per_step(runs[name]), rel=0.07)


def test_training_that_never_runs_alone_has_costs_that_are_corrected_for_an_assumed_slowdown(
    runs: dict[str, list[Entry]],
) -> None:
    entries = runs["one-step"]
    assert all(sample.overlaps for sample in observed(entries).pieces[:-1]), (
        "all pieces but the last run beside rollout"
    )
    assumed = replace(MACHINE, sharing=Sharing(rollout=3.0, training=SLOWDOWN))
    found = calibrate([entries], assumed)
    assert (found.is_training_assumed, found.corrected) == (True, ("training",))
    assert found.costs.sharing.training == SLOWDOWN
    assert "Training (almost) never had the devices alone" in (found.assumption or "")
    assert found.rests_on_assumption(schedule_of(runs["sync"])), "also where they take turns"
    trainer = found.costs.trainer.times(1 / found.stretch)
    assert trainer.piece(1000) == pytest.approx(PIECE_S + 1000 * TOKEN_S, rel=0.1)


@pytest.mark.parametrize(("noise_s", "fixed_s"), [(0.0, PIECE_S), (0.5, 0.0)])
def test_a_fixed_cost_of_a_piece_counts_only_if_the_pieces_show_it_clearly(noise_s: float, fixed_s: float) -> None:
    tokens = [900.0, 1000.0, 1100.0, 1000.0, 900.0, 1100.0]
    noise = [noise_s * (-1) ** (number // 2) for number in range(6)]
    samples = [
        TrainingSample(tokens=n, seconds=PIECE_S + TOKEN_S * n + more, overlaps=[], is_first=False)
        for n, more in zip(tokens, noise, strict=True)
    ]
    seen = Observations(prompt_length=20, pieces=samples, finishes=samples[:1])
    trainer, _ = fit_trainer(seen, MACHINE)
    assert trainer.piece_s == pytest.approx(fixed_s)
    assert trainer.piece(1000) == pytest.approx(PIECE_S + 1000 * TOKEN_S, rel=0.1)


def test_what_was_measured_rests_on_no_assumption(runs: dict[str, list[Entry]]) -> None:
    found = calibrate([runs["sync"], runs["one-step"]], MACHINE)
    assert (found.assumption, found.corrected) == (None, ())
    assert not found.rests_on_assumption(schedule_of(runs["one-step"]))
    alone = calibrate([runs["sync"]], MACHINE)
    assert alone.rests_on_assumption(schedule_of(runs["one-step"]))
    assert not alone.rests_on_assumption(schedule_of(runs["sync"]))


@pytest.mark.parametrize(
    ("preset", "placement", "is_beside"),
    [
        ("one-step", Placement.SHARED, True),
        ("one-step", Placement.DISAGGREGATED, False),
        ("sync", Placement.SHARED, False),
        ("sync", Placement.COLOCATED, False),
    ],
)
def test_training_runs_beside_rollout_only_on_the_same_devices(
    preset: str, placement: Placement, *, is_beside: bool
) -> None:
    seen = observed(recorded(preset, placement))
    assert any(sample.overlaps for sample in seen.pieces) == is_beside
    assert any(sample.overlaps for sample in seen.engine) == is_beside
    assert len(seen.finishes) == 12
