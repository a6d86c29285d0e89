"""`tailrace report` and `tailrace doctor`, as typed."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from core.world import World
from observe.runs import write_journal
from tailrace.cli.main import main
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


def test_doctor_is_0_when_all_is_well_and_1_with_findings(
    tmp_path: Path, entries: list, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(write_journal(tmp_path / "whole", entries))]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    assert main(["doctor", str(write_journal(tmp_path / "cut", entries[:-3])), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["state"] == "stopped"
    assert [finding["subject"] for finding in found["findings"]] == ["run"]
