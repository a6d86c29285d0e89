"""`tailrace cluster`, as typed."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from core.world import World
from observe.runs import write_journal
from tailrace.cli.main import main
from tailrace.core.schedule import Schedule
from tailrace.observe.demand import job_demand


@pytest.fixture
def run(tmp_path: Path) -> Path:
    world = World(Schedule(train_source="train", batch_size=2, group_size=2, max_steps=6), random.Random(0))
    world.run()
    return write_journal(tmp_path / "mine", world.entries)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    data = {"format": 1, "job": "7b", "train_devices": 8, "rollout_devices": 4}
    data["trace"] = {"period_s": 289.03, "segments": [{"offset_s": 231.53, "duration_s": 57.5}]}
    (tmp_path / "7b.json").write_text(json.dumps(data))
    return tmp_path / "7b.json"


def test_a_run_is_written_as_a_trace(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.json"
    assert main(["cluster", "trace", str(run), "--json", str(file), "--train-devices", "8"]) == 0
    assert "6 steps" in capsys.readouterr().out
    found = job_demand.read(file)
    assert (found.name, found.train_devices, found.rollout_devices, len(found.run)) == ("mine", 8, 1, 6)
    assert main(["cluster", "trace", str(run)]) == 0
    assert json.loads(capsys.readouterr().out)["job"] == "mine"


def test_a_trace_given_twice_is_two_jobs_that_share(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "plan", str(trace), str(trace)]) == 0
    out = capsys.readouterr().out
    assert "spread: 2 jobs on 1 node group\n" in out
    [first, second] = [line.split() for line in out.splitlines() if line.startswith("7b")]
    assert "###" in first[-1]
    assert "###" in second[-1]
    assert not any(a == b == "#" for a, b in zip(first[-1], second[-1], strict=True)), "one job at a time"
    assert (second[0], second[3:6], second[8]) == ("7b-2", ["19.9%", "19.9%", "58.0"], "33.3%")


def test_the_plan_is_written_as_data_and_as_a_page(
    trace: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, page = tmp_path / "plan.json", tmp_path / "plan.html"
    options = ["--switch-s", "8", "--json", str(data), "--html", str(page)]
    assert main(["cluster", "plan", str(trace), str(trace), str(run), *options]) == 0
    assert f"page: {page}" in capsys.readouterr().out
    plans = {plan["policy"]: plan for plan in json.loads(data.read_text())}
    assert set(plans) == {"isolated", "pack", "spread"}
    assert sum(plan["is_chosen"] for plan in plans.values()) == 1
    groups = plans["spread"]["groups"]
    assert [[each["id"] for each in group["jobs"]] for group in groups] == [["7b", "7b-2"], ["mine"]]
    assert groups[0]["jobs"][0]["saving"] == pytest.approx(0.315, abs=0.001)
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(("count", "sentences"), [(24, 0), (25, 1)])
def test_the_page_says_how_many_groups_it_does_not_draw(
    trace: Path, tmp_path: Path, count: int, sentences: int
) -> None:
    page = tmp_path / "plan.html"
    assert main(["cluster", "plan", *[str(trace)] * count, "--policy", "isolated", "--html", str(page)]) == 0
    assert page.read_text().count("The first 24 of 25 node groups are drawn.") == sentences


def test_what_a_plan_takes_for_granted_is_said(
    trace: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def notes(*arguments: str) -> list[str]:
        main(["cluster", "plan", *arguments])
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]

    [switches] = notes(str(trace), str(trace))
    assert switches.endswith("--switch-s says how long it takes")
    assert notes(str(trace), str(trace), "--switch-s", "8") == []
    assert notes(str(trace), str(trace), "--policy", "isolated") == []
    *_, brackets = notes(str(run), str(run))
    assert brackets.startswith("note: in brackets: the least and the most")
    busy = json.loads(trace.read_text())
    busy["trace"] = {"period_s": 100.0, "segments": [{"offset_s": 45.0, "duration_s": 55.0}]}
    (tmp_path / "busy.json").write_text(json.dumps(busy))
    options = ["--policy", "spread", "--max-duty", "1", "--switch-s", "1"]
    [orders] = notes(*[str(tmp_path / "busy.json")] * 3, *options)
    assert orders == "note: 4 orders of the jobs were tried; whether 2 node groups could be enough is not known"


def test_states_are_checked_against_the_memory_of_the_host(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads(trace.read_text()) | {"state_gb": {"weights": 15.2, "optimizer": 106.4}}
    (tmp_path / "known.json").write_text(json.dumps(data))
    known = [str(tmp_path / "known.json")] * 2
    assert main(["cluster", "plan", *known, "--policy", "spread", "--host-gb", "243.2", "--switch-s", "8"]) == 0
    assert "spread: 2 jobs on 1 node group\n" in capsys.readouterr().out
    assert main(["cluster", "plan", *known, "--policy", "spread", "--host-gb", "200", "--switch-s", "8"]) == 0
    assert "spread: 2 jobs on 2 node groups\n" in capsys.readouterr().out
    assert main(["cluster", "plan", str(trace), "--host-gb", "100"]) == 0
    assert "note: no state is known of 7b: their trace needs state_gb" in capsys.readouterr().out


def test_a_policy_and_a_number_of_groups_can_be_asked_for(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "plan", *[str(trace)] * 3, "--policy", "isolated", "--groups", "2"]) == 1
    out = capsys.readouterr().out
    assert "isolated: 2 jobs on 2 node groups" in out
    assert "7b-3 has no place" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["plan", "nothing.json"], "nothing.json cannot be read: No such file or directory"),
        (["plan", "."], ". holds no run"),
        (["plan", "TRACE", "--groups", "0"], "--groups must be at least 1"),
        (["plan", "TRACE", "--max-jobs", "0"], "--max-jobs must be at least 1"),
        (["plan", "TRACE", "--max-duty", "1.5"], "--max-duty must be above 0 and at most 1"),
        (["plan", "TRACE", "--host-gb", "0"], "--host-gb must be a number of gigabytes above 0, got 0"),
        (["plan", "TRACE", "--switch-s", "-1"], "--switch-s must be a number of seconds from 0 on, got -1"),
        (["plan", "TRACE", "--switch-s", "nan"], "--switch-s must be a number of seconds from 0 on, got nan"),
        (["plan", "TRACE", "--switch-s", "inf"], "--switch-s must be a number of seconds from 0 on, got inf"),
        (["plan", "TRACE", "--json", "no/such/plan.json"], "a file cannot be written"),
        (["plan", "TRACE", "--colour", "red"], "unexpected argument '--colour'"),
        (["trace", "TRACE"], "7b.json is no run directory"),
        (["trace", "nothing"], "there is no run directory nothing"),
        (["trace", ".", "--train-devices", "0"], "--train-devices must be at least 1"),
    ],
)
def test_a_mistake_is_a_sentence(
    arguments: list[str],
    sentence: str,
    trace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(trace.parent)
    assert main(["cluster", *(str(trace) if each == "TRACE" else each for each in arguments)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("tailrace: ")
    assert sentence in said
    assert said.count("\n") == 1
