"""How the parts of RollPacker's reward row are put beside the paper's figures."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tailrace.observe.schedules.schedule_account import ScheduleFigures
from tailrace.sim.named_schedule import scenario_under, schedule_of


@pytest.fixture(scope="module")
def rewards() -> ModuleType:
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    try:
        import simulated_rewards
    finally:
        sys.path.pop(0)
    return simulated_rewards


def figures(step_s: float, rollout_s: float, *, training_s: float = 0.0) -> ScheduleFigures:
    names: dict[str, Any] = dict.fromkeys(ScheduleFigures.__slots__, 0)
    return ScheduleFigures(
        **names
        | {
            "num_steps": 4,
            "seconds_per_step": step_s,
            "tokens_generated": 4000,
            "rollout_tokens_per_s": 1000.0 / rollout_s,
            "trainer_idle_share": 1.0 - training_s / step_s,
        }
    )


def test_the_parts_multiply_to_the_whole_row(rewards: ModuleType) -> None:
    by = {
        rewards.BASE: figures(200.0, 100.0),
        rewards.TAIL: figures(110.0, 40.0),
        rewards.LIMITS: figures(100.0, 30.0),
        rewards.ALL: figures(80.0, 30.0),
    }
    rows = {row.name: row for row in rewards.ROWS if row.size == "7B/8k"}
    names = ["tail batching alone", "scores while others run: times", "adaptive limits: times"]
    names.append("judge on the devices of rollout: times")
    parts = [rows[name].figure(by) for name in names]
    assert parts == pytest.approx([200 / 140, 140 / 110, 1.1, 1.25])
    assert math.prod(parts) == pytest.approx(rows["all of them, over the baseline"].figure(by)) == pytest.approx(2.5)


def test_training_does_not_count_where_a_row_says_so(rewards: ModuleType) -> None:
    by = {rewards.TAIL: figures(110.0, 40.0, training_s=50.0), rewards.LIMITS: figures(90.0, 30.0, training_s=50.0)}
    assert rewards.without_training_ratio(rewards.LIMITS, rewards.TAIL)(by) == pytest.approx(1.5)


def test_what_the_paper_calls_up_to_is_a_bound(rewards: ModuleType) -> None:
    [row] = [row for row in rewards.ROWS if row.is_bound]
    assert rewards.entry(row, [1.05, 1.24])["is_near"]
    assert not rewards.entry(row, [1.05, 1.26])["is_near"]
    assert rewards.entry(replace(row, paper=None), [3.0])["is_near"] is None


def test_every_run_of_the_rows_can_be_simulated_and_every_change_changes_something(rewards: ModuleType) -> None:
    runs = {run for row in (*rewards.ROWS, *rewards.varied(), *rewards.afterwards()) for run in row.runs(0).values()}
    for run in runs:
        plain = rewards.load(f"rollpacker_rewards_{run.size.replace('/', '_').lower()}")
        scenario = rewards.CHANGES[run.change](plain) if run.change else plain
        assert (scenario != plain) == bool(run.change)
        under = scenario_under(scenario, run.schedule)
        assert schedule_of(scenario, run.schedule).num_instances == under.num_instances
    assert {run.change for run in runs} - {""} <= set(rewards.CHANGES)
