"""`tailrace report` and `tailrace doctor`, as typed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from core.world import World
from observe.runs import write_journal
from tailrace.cli.main import main
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.schedule import Schedule

SCHEDULE = Schedule(train_source="train", batch_size=2, group_size=2, max_steps=2)


@pytest.fixture
def entries() -> list:
    world = World(SCHEDULE, random.Random(0))
    world.run()
    return world.entries


def test_report_writes_into_the_run_directory_and_says_where(
    tmp_path: Path, entries: list, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_journal(tmp_path / "run", entries)
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out.startswith(f"report: {run / 'report.html'} (")
    assert (run / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("verb", ["report", "doctor"])
def test_a_directory_without_a_run_is_exit_2_with_a_sentence(
    tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"tailrace: {tmp_path} holds no run: there is nothing in its journal.jsonl\n"


@pytest.mark.parametrize("verb", ["report", "doctor", "replay"])
def test_a_journal_of_another_format_is_exit_2_with_a_sentence(
    tmp_path: Path, entries: list, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = write_journal(tmp_path / "run", entries) / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"format":2,', b"", 1))
    assert main([verb, str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == (
        f"tailrace: {journal}: the journal has no format number, and this version of tailrace reads format 2:"
        " use the version that wrote it, or start in another output_dir\n"
    )


@pytest.mark.parametrize("verb", ["report", "doctor"])
def test_an_argument_nobody_knows_is_refused(
    tmp_path: Path, entries: list, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_journal(tmp_path / "run", entries)
    assert main([verb, str(run), "--colour"]) == 2
    assert "unexpected argument '--colour'" in capsys.readouterr().err
    assert not (run / "report.html").exists()


def test_a_report_that_cannot_be_written_is_exit_2(
    tmp_path: Path, entries: list, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_journal(tmp_path / "run", entries)
    assert main(["report", str(run), "--output", str(tmp_path / "no" / "page.html")]) == 2
    assert "the report cannot be written" in capsys.readouterr().err


def test_a_report_that_cannot_take_its_place_leaves_no_draft(tmp_path: Path, entries: list) -> None:
    run = write_journal(tmp_path / "run", entries)
    (tmp_path / "pages" / "page.html").mkdir(parents=True)
    assert main(["report", str(run), "--output", str(tmp_path / "pages" / "page.html")]) == 2
    assert [path.name for path in (tmp_path / "pages").iterdir()] == ["page.html"]


def without_orders_to_train(entries: list) -> list:
    """Steps that nobody asked for: no response belongs to them."""
    return [
        replace(entry, commands=tuple(c for c in entry.commands if not isinstance(c, do.Accumulate)))
        for entry in entries
    ]


def without_its_beginning(entries: list) -> list:
    first = next(n for n, entry in enumerate(entries) if isinstance(entry.event, ev.ResponsesScored))
    return [entries[0], *entries[first:]]


@pytest.mark.parametrize(
    ("damage", "cause"), [(without_orders_to_train, "StepTrained"), (without_its_beginning, "KeyError")]
)
def test_a_journal_that_cannot_be_followed_is_a_sentence(
    tmp_path: Path,
    entries: list,
    damage: Callable[[list], list],
    cause: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = write_journal(tmp_path / "run", damage(entries))
    before = sorted(run.iterdir())
    assert main(["report", str(run)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("tailrace: the journal cannot be followed: entry ")
    assert cause in said
    assert said.endswith(f"; `tailrace doctor {run}` says more\n")
    assert sorted(run.iterdir()) == before
    assert main(["doctor", str(run)]) == 1
    assert "journal: the journal cannot be followed to its end" in capsys.readouterr().out


def test_a_reader_that_has_had_enough_is_no_error(tmp_path: Path, entries: list) -> None:
    run = write_journal(tmp_path / "run", entries)
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "tailrace.cli.main", "doctor", str(run)]
    try:
        ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writing)
    assert ended.stderr == ""
    assert ended.returncode == 128 + signal.SIGPIPE


def test_doctor_is_0_when_all_is_well_and_1_with_findings(
    tmp_path: Path, entries: list, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(write_journal(tmp_path / "whole", entries))]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    assert main(["doctor", str(write_journal(tmp_path / "cut", entries[:-3])), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["state"] == "stopped"
    assert [finding["subject"] for finding in found["findings"]] == ["run"]
