"""docs/staleness.md says what the ledger does: its table, its pictures, its figures and its names."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tailrace.config.settings import Settings
from tailrace.core.ids import GroupId
from tailrace.core.ledger.admission import AdmissionRule, LedgerEntry, LedgerRules
from tailrace.core.ledger.ledger import BatchState, Ledger
from tailrace.core.schedule import Schedule
from tailrace.core.training.room import Training
from tailrace.sim.result import simulate
from tailrace.sim.scenario_file import load_scenario

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "staleness.md").read_text()


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return load("staleness_example")


@pytest.fixture(scope="module")
def pictures(example: ModuleType) -> ModuleType:
    return load("staleness_pictures")


def rows(first_cell: str) -> list[tuple[str, ...]]:
    """The page's table rows whose first cell matches."""
    lines = [line.strip("|") for line in PAGE.splitlines() if line.startswith("|")]
    cells = [tuple(cell.strip() for cell in line.split("|")) for line in lines]
    return [row for row in cells if re.fullmatch(first_cell, row[0])]


def test_the_table_of_the_example_is_what_the_ledger_does(example: ModuleType) -> None:
    assert rows(r"\d+") == [scene.row for scene in example.scenes()]


def test_the_example_shows_every_state_a_move_later_a_move_forward_and_the_bound(example: ModuleType) -> None:
    scenes = example.scenes()
    assert {scene.state for scene in scenes} == {state.value for state in BatchState}
    moves = [(scene.number, place.group, place.moved_from) for scene in scenes for b in scene.buffers for place in b]
    assert [move for move in moves if move[2] is not None] == [(2, "b", 1), (2, "c", 0), (8, "e", 2)]
    assert scenes[-1].trained == (("b", 0), ("d", 0), ("c", 1), ("e", 0))
    assert scenes[4].instances == {"X": 0, "Y": 1}


def test_a_fifth_group_of_the_example_does_not_begin_and_training_waits_for_a_alone(example: ModuleType) -> None:
    run = example.Example()
    awaited = {scene.number: [example.letter_of(group) for group in run.ledger.awaited()] for scene in run.scenes()}
    assert (awaited[1], awaited[6], awaited[7], awaited[8]) == (["c", "d"], ["a", "c"], ["a"], [])
    assert example.scenes()[0].admits == {0: False}
    assert example.scenes()[3].admits == {0: False, 1: True}


def test_by_count_the_slow_group_of_the_example_trains_at_staleness_three() -> None:
    rules = LedgerRules(batch_size=2, max_staleness=1, admission=AdmissionRule.COUNT, capacity=2)
    ledger, batches = Ledger(rules), []

    def group(letter: str) -> GroupId:
        return GroupId("train", 0, ord(letter) - ord("a"))

    for begun, finished in (("abcd", "bd"), ("ef", "ec"), ("gh", "fg"), ("ij", "ah")):
        for letter in begun:
            ledger.reserve(group(letter), ledger.current)
            assert len(ledger.entries) <= 4
        for letter in finished:
            ledger.occupy(group(letter))
        batches.append(ledger.consume())
    assert [each.violations for each in batches] == [0, 0, 0, 1]
    assert (batches[3].batch, batches[3].staleness) == ((group("a"), group("h")), (3, 1))
    assert "a is finished it trains with h in batch 3, at staleness 3" in PAGE.replace("\n", " ")


def test_the_figures_of_the_run_that_is_drawn_are_those_of_the_simulator() -> None:
    scenario = load_scenario(ROOT / "scenarios" / "two_instances.toml")
    results = {name: simulate(scenario, name).figures for name in scenario.schedule.compare}
    figures = [(f"{f.staleness_mean:.2f}", str(f.staleness_max), str(f.staleness_violations)) for f in results.values()]
    assert rows(r"(staleflow|async-cap)-\d") == [(name, *each) for name, each in zip(results, figures, strict=True)]
    assert f"{results['staleflow-2'].wall_s / results['async-cap-2'].wall_s - 1:.0%}" == "6%"


def test_the_cost_of_a_plan_is_the_one_that_was_kept() -> None:
    kept = json.loads((ROOT / "benchmarks" / "results" / "planning.json").read_text())
    expected = [
        (
            f"{row['instances']} x {row['responses']:,}",
            row["state"],
            f"{row['num_routed']:,}",
            *(f"{row[name]:.1f} ms" for name in ("plan_cpu_ms", "with_commands_cpu_ms")),
            f"{row['limit_ms']:.0f} ms",
        )
        for row in kept["plans"]
    ]
    assert rows(r"\d+ x [\d,]+") == expected
    assert kept["machine"] in PAGE


@pytest.mark.parametrize("name", ["staleness-buffers.svg", "staleness-timeline.svg"])
def test_a_picture_is_what_the_script_draws_today(pictures: ModuleType, name: str) -> None:
    drawn, kept = pictures.pictures()[name], (ROOT / "docs" / "images" / name).read_text()
    assert drawn == kept, "draw it again: python scripts/staleness_pictures.py"
    assert f"images/{name}" in PAGE


def test_the_settings_names_and_files_of_the_page_exist() -> None:
    sections = {name: field.annotation for name, field in Settings.model_fields.items()}
    for section, name in re.findall(r"`(schedule|rollout|limits)\.(\w+)`", PAGE):
        assert name in sections[section].model_fields, f"{section}.{name}"
    owners = {each.__name__: each for each in (Ledger, LedgerRules, LedgerEntry, Schedule, Training)}
    for owner, name in re.findall(r"`(\w+)\.(\w+)`", PAGE):
        if owner in owners:
            assert hasattr(owners[owner], name) or name in owners[owner].__dataclass_fields__, f"{owner}.{name}"
    for link in re.findall(r"\]\((?!https)([^)]+)\)", PAGE):
        assert (ROOT / "docs" / link).exists(), link
    for path in re.findall(r"`((?:core|scripts|scenarios)/[\w./]+)`", PAGE):
        assert (ROOT / path).exists() or (ROOT / "src" / "tailrace" / path).exists(), path
