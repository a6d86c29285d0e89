"""The rows of the parallelism planner and of RollPacker's Table 2: what they name exists, and their figures follow."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import InstanceId, Version
from tailrace.core.journal import Entry
from tailrace.sim.named_schedule import schedule_of

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def imported(name: str) -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return __import__(name)
    finally:
        sys.path.pop(0)


@pytest.fixture(scope="module")
def planner() -> ModuleType:
    return imported("simulated_planner")


@pytest.fixture(scope="module")
def rollpacker() -> ModuleType:
    return imported("simulated_rollpacker")


def test_each_setting_has_the_fixed_size_it_starts_from_and_each_change_a_run_beside_it(planner: ModuleType) -> None:
    wanted = {(run.setting, run.schedule, run.change) for run in planner.runs(1)}
    assert {setting for setting, _, _ in wanted} == set(planner.SETTINGS) == set(planner.PAPER)
    for setting, schedule, change in wanted:
        initial = f"size {planner.SETTINGS[setting].initial}"
        assert (setting, initial, change) in wanted, f"{schedule} has nothing to stand beside"
    assert {change for _, _, change in wanted} == {"", *planner.CHANGES, *planner.AFTERWARDS}


def test_a_planner_run_and_its_fixed_size_have_the_same_lengths_and_costs(planner: ModuleType) -> None:
    fixed, planned = (
        planner.simulated(planner.PlannerRun(setting="ramp, 2k", schedule=name, seed=0, steps=1))
        for name in ("size 1", planner.FRESH)
    )
    assert [each.size for each in planned.rounds] == [1]
    assert [each.size for each in fixed.rounds] == [0], "a fixed size knows no others"
    assert planned.rounds[0].num_launched == 1600
    assert planned.figures.seconds_per_step == pytest.approx(fixed.figures.seconds_per_step)
    found = {
        planner.PlannerRun(setting="ramp, 2k", schedule=name, seed=0): outcome
        for name, outcome in (("size 1", fixed), (planner.FRESH, planned))
    }
    rows = {row["schedule"]: row for row in planner.rows(found, 1)}
    assert rows[planner.FRESH]["speed_up"]["mean"] == 1.0
    assert rows[planner.FRESH]["changes_short"] == [[]]


def test_every_change_of_an_assumption_can_be_simulated(planner: ModuleType) -> None:
    scenario = planner.load(planner.RAMP)
    for name, change in (planner.CHANGES | planner.AFTERWARDS).items():
        changed = change(scenario)
        assert changed != scenario, name
        assert all(each.engine.kv_capacity > 33_000 for each in changed.costs_of_sizes().values()), name


def test_the_rows_of_table_2_name_schedules_of_every_size(rollpacker: ModuleType) -> None:
    rows = [*rollpacker.ROWS, *rollpacker.changed_rows()]
    named = {schedule for row in rows for schedule in row.schedules}
    assert named == set(rollpacker.ARMS)
    for size in rollpacker.SIZES:
        scenario = rollpacker.load(f"rollpacker_rewards_{size.replace('/', '_').lower()}")
        for name in named:
            made = schedule_of(scenario, name)
            assert bool(made.parallelism.layouts) == (name in (rollpacker.PLANNER, rollpacker.WHOLE))
            assert made.streams == (name in (rollpacker.WHOLE, rollpacker.OVERLAP, rollpacker.OVERLAP_SHARED))


def test_the_record_of_rounds_counts_the_preemptions_of_each_process_once() -> None:
    recorder = imported("planner_rounds").RoundRecorder()
    instance = InstanceId(0)

    def feed(now: float, event: ev.Event, *commands: do.Command) -> None:
        recorder.feed(Entry(now=now, event=event, commands=commands))

    def reported(total: int) -> ev.Event:
        return ev.RolloutReported(instance=instance, version=Version(0), num_preemptions=total)

    def opened(number: int, size: int) -> do.Command:
        return do.OpenRound(
            round=number, is_long=False, version=Version(number), num_prompts=3, num_responses=2, parallel_size=size
        )

    start: dict[str, Any] = {"instance": instance, "dispatches": ()}
    close: dict[str, Any] = {"is_long": False, "accepted": ()}
    feed(0.0, ev.TimerFired(), opened(0, 1))
    feed(60.0, ev.TimerFired(), do.Submit(**start))
    feed(70.0, reported(4))
    feed(80.0, reported(5), do.CloseRound(round=0, **close))
    feed(90.0, ev.InstanceStopped(instance=instance), opened(1, 2))
    feed(150.0, ev.TimerFired(), do.Submit(**start))
    feed(160.0, reported(3), do.CloseRound(round=1, **close))
    first, second = recorder.rounds
    assert (first.num_preemptions, second.num_preemptions) == (5, 3)
    assert (first.seconds, second.seconds, second.rollout_s) == (20.0, 70.0, 10.0), (
        "the start of the run counts nothing"
    )
    assert imported("planner_rounds").changes(recorder.rounds, is_long=False) == ["2: 2"]
