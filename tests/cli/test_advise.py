"""`tailrace advise`, as typed, on journals of simulated runs."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cli.test_replay import CONFIG
from observe.runs import write_journal
from sim.worlds import small_scenario
from tailrace.cli.main import main
from tailrace.core.events import RunStarted
from tailrace.core.journal import Entry
from tailrace.core.schedule import EvalSet, Schedule
from tailrace.observe.schedules.advice import FILE, Advice, read
from tailrace.observe.schedules.comparison import figures_of
from tailrace.sim.advice.evidence import first_steps
from tailrace.sim.result import simulate


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    found: list[Entry] = []
    scenario = small_scenario(
        schedule__num_steps=5, schedule__rollout_batch_size=4, engine__max_running=8, engine__placement="colocated"
    )
    simulate(scenario, "sync", record=found.append)
    first = found[0].event
    assert isinstance(first, RunStarted)
    schedule = replace(first.schedule, epoch_size=1000)  # the simulator draws prompts without end
    return [replace(found[0], event=RunStarted(schedule=schedule)), *found[1:]]


def as_run(folder: Path, entries: list[Entry]) -> Path:
    run = write_journal(folder, entries)
    (run / "config.json").write_text(json.dumps({**CONFIG, "schedule": {"preset": "sync", "placement": "colocated"}}))
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, entries: list[Entry]) -> Path:
    return as_run(tmp_path_factory.mktemp("run"), entries)


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copy"))


def test_schedules_are_predicted_and_kept_for_the_report(
    copy: Path, entries: list[Entry], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["advise", str(copy), "--json", str(tmp_path / "all.json")]) == 0
    shown = capsys.readouterr()
    recorded_s = figures_of(entries).seconds_per_step
    assert shown.out.startswith(f"This run (sync), 5 of 5 steps: {recorded_s:.2f} s per step recorded, ")
    lines = shown.out.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("schedule"))
    assert lines[head + 1].split()[0] == "sync"
    assert any(line.startswith("tail-batching") for line in lines)
    assert any(line.startswith("not possible here: one-step: colocated rollout and training") for line in lines)
    assert "simulating sync, the schedule of the run ..." in shown.err.splitlines()
    advice = read(copy)
    assert advice is not None
    assert advice.recorded_s == recorded_s
    assert lines[-1] in advice.sentences
    assert Advice.from_dict(json.loads((tmp_path / "all.json").read_text())) == advice


def test_a_part_of_a_run_is_enough_and_the_command_says_so(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", str(copy), "--steps", "4"]) == 0
    shown = capsys.readouterr()
    assert "the run has 5 steps; the first 4 are simulated (--steps) ..." in shown.err.splitlines()
    assert shown.out.startswith("This run (sync), first 4 of 5 steps: ")


def test_a_second_run_measures_as_well(copy: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", str(copy), "--steps", "4", "--with", str(run)]) == 0
    assert "fitting costs to 2 runs ..." in capsys.readouterr().err.splitlines()
    assert not (run / FILE).exists(), "only the first run is advised"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--steps", "0"], "--steps is 0; it takes at least 4 optimizer steps to predict anything"),
        (["--steps", "-2"], "--steps is -2; it takes at least 4 optimizer steps to predict anything"),
        (["--json", "/nowhere/at/all.json"], "--json: /nowhere/at/all.json is no place for a file"),
        (["--with", "absent"], "there is no run directory absent"),
        (["--steps", "3"], "--steps is 3; it takes at least 4 optimizer steps to predict anything"),
    ],
)
def test_what_cannot_be_asked_is_a_sentence(
    run: Path, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["advise", str(run), *arguments]) == 2
    said = capsys.readouterr()
    assert (sentence in said.err, said.out) == (True, "")
    assert not (run / FILE).exists()


def test_what_is_no_run_that_trained_is_a_sentence(
    run: Path, entries: list[Entry], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = write_journal(tmp_path / "bare", entries)
    (bare / "config.json").unlink()
    first = entries[0].event
    assert isinstance(first, RunStarted)
    idle = Schedule(
        train_source="",
        batch_size=4,
        group_size=4,
        max_steps=0,
        eval_sets=(EvalSet(name="train", num_prompts=2, group_size=2),),
        eval_interval=1,
    )
    untrained = as_run(tmp_path / "untrained", [replace(entries[0], event=replace(first, schedule=idle))])
    short = as_run(tmp_path / "short", list(first_steps(entries, 2)))
    (tmp_path / "empty").mkdir()
    expected = {
        tmp_path / "absent": "there is no run directory",
        tmp_path / "empty": "holds no run: there is nothing in its journal.jsonl",
        run / "journal.jsonl": "is a file; give the run directory, which also holds the settings of the run",
        bare: "has no config.json that can be read",
        untrained: "the run did not train, so there is no step to predict",
        short: "2 optimizer steps are too few to predict from; it takes at least 4",
    }
    for path, sentence in expected.items():
        assert main(["advise", str(path)]) == 2
        said = capsys.readouterr().err
        assert sentence in said.splitlines()[-1], said
