"""Runs of earlier releases stay usable: their journals replay exactly, and a run directory continues.

``edition_1.tar.gz`` holds a run that was killed in step 6 of 8, with a checkpoint of step 3, and what it was started
with: the recipe, a small model and a reward function.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.config.gone import GONE, without_gone
from tailrace.config.settings import Settings
from tailrace.core.coordinator import Coordinator
from tailrace.core.events import RunResumed, RunStarted
from tailrace.core.journal import Entry, decode, replay_all
from tailrace.observe.journal import journal_file
from tailrace.policies.strategies import policies_of

JOURNALS = Path(__file__).parents[2] / "benchmarks" / "results" / "journals"
OTHER_RULES = "gpu_steps_h200/staleflow.jsonl.gz"
"""Written by a release whose rules were others: it never replayed with a later one."""
KEPT = sorted(str(path.relative_to(JOURNALS)) for path in JOURNALS.glob("*/*.jsonl.gz"))


def entries(path: Path) -> Iterator[Entry]:
    with gzip.open(path, "rt") as file:
        yield from map(decode, file)


def replayed(found: Iterator[Entry]) -> int:
    return replay_all(found, lambda schedule: Coordinator(schedule, policies=policies_of(schedule)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder in which the run of the first edition was started."""
    with tarfile.open(Path(__file__).parent / "edition_1.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def train(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tailrace", "train", "recipe.toml", *more]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)


def test_the_journals_that_are_kept_are_found() -> None:
    assert len(KEPT) >= 26
    assert OTHER_RULES in KEPT


@pytest.mark.parametrize("name", [name for name in KEPT if name != OTHER_RULES])
def test_a_kept_journal_replays_exactly(name: str) -> None:
    assert replayed(entries(JOURNALS / name)) > 0


def test_a_journal_that_names_no_edition_has_the_first(folder: Path) -> None:
    line = (folder / "run" / "journal.jsonl").read_text().splitlines()[0]
    assert "edition" not in json.loads(line)["event"]["schedule"]
    event = decode(line).event
    assert isinstance(event, RunStarted)
    assert event.schedule.edition == 1


def test_a_run_of_the_first_edition_continues_with_the_same_command(folder: Path) -> None:
    result = train(folder)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "repeating 2 steps that were trained after the last checkpoint" in result.stdout
    assert "done: 8 steps are done" in result.stdout
    found = [entry for _, entry in journal_file.read(folder / "run" / "journal.jsonl")]
    assert [type(entry.event) for entry in found].count(RunResumed) == 1
    assert replayed(iter(found)) == len(found)


def test_a_run_of_the_first_edition_is_refused_with_other_settings(folder: Path) -> None:
    result = train(folder, "--rollout.temperature", "0.9")
    assert result.returncode == 2
    assert "holds a run with other settings (rollout.temperature)" in result.stderr


@pytest.mark.parametrize("name", GONE)
def test_a_run_that_had_another_value_of_a_setting_that_is_gone_is_refused(folder: Path, name: str) -> None:
    file = folder / "run" / "config.json"
    config = json.loads(file.read_text())
    *sections, key = name.split(".")
    place = config
    for section in sections:
        place = place[section]
    assert place[key] == GONE[name].default
    place[key] = 4
    file.write_text(json.dumps(config))
    result = train(folder)
    assert result.returncode == 2
    assert f"({name} was 4, and there is no such setting any more)" in result.stderr


CONFIGS = sorted(JOURNALS.glob("*/*config.json"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_setting_of_a_kept_run_exists_or_is_known_to_be_gone(path: Path) -> None:
    kept, others = without_gone(json.loads(path.read_text()), GONE)
    assert others == {}
    assert Settings.model_validate(kept)
