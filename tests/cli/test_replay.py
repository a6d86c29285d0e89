"""`tailrace replay`, as typed, on journals of simulated runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from observe.runs import write_journal
from sim.test_parallel_sizes import journal, sized
from sim.worlds import small_scenario
from tailrace.cli.main import main
from tailrace.core.events import RunStarted
from tailrace.core.journal import Entry
from tailrace.core.schedule import Division, Layout, Lending, Parallelism
from tailrace.observe.schedules.comparison import figures_of
from tailrace.sim.one_size import LEFT_OUT
from tailrace.sim.result import simulate

CONFIG = {
    "rollout": {
        "engine": "native",
        "num_instances": 2,
        "max_response_length": 500,
        "kv_tokens": 5000,
        "max_running": 8,
        "prefill_chunk": 512,
    },
    "data": {"max_prompt_length": 20},
    "reward": {"workers": 3},
}


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    found: list[Entry] = []
    scenario = small_scenario(schedule__num_steps=6, engine__max_running=8, engine__placement="shared")
    simulate(scenario, "sync", record=found.append)
    first = found[0].event
    assert isinstance(first, RunStarted)
    schedule = replace(first.schedule, epoch_size=1000)  # the simulator draws prompts without end
    return [replace(found[0], event=RunStarted(schedule=schedule)), *found[1:]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, entries: list[Entry]) -> Path:
    run = write_journal(tmp_path_factory.mktemp("run"), entries)
    (run / "config.json").write_text(json.dumps(CONFIG))
    return run


@pytest.mark.parametrize("name", ["", "journal.jsonl", "other.jsonl"])
def test_a_run_or_its_journal_under_any_name_gives_the_recorded_commands(
    run: Path, entries: list[Entry], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "other.jsonl").write_bytes((run / "journal.jsonl").read_bytes())
    assert main(["replay", str(run / name)]) == 0
    assert capsys.readouterr().out == f"{len(entries)} entries, every command as recorded\n"


def test_a_journal_with_another_command_is_exit_1(run: Path, entries: list[Entry], tmp_path: Path) -> None:
    number = next(number for number, entry in enumerate(entries) if entry.commands)
    wrong = [*entries[:number], replace(entries[number], commands=()), *entries[number + 1 :]]
    assert main(["replay", str(write_journal(tmp_path / "run", wrong))]) == 1


@pytest.mark.parametrize("name", ["", "journal.jsonl"])
def test_another_schedule_is_simulated_beside_the_recorded_one(
    run: Path, entries: list[Entry], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(run / name), "--schedule", "tail-batching"]) == 0
    head, *rows, drawn = capsys.readouterr().out.splitlines()
    assert head.startswith("schedule")
    shown = {row.split()[0]: row.split() for row in rows}
    assert list(shown) == ["recorded", "simulated", "tail-batching"]
    figures = figures_of(entries)
    assert shown["recorded"][2] == f"{figures.seconds_per_step:.1f}"
    # The costs were fitted to this journal, so its own schedule comes out again; the other wastes tokens, as it does.
    assert float(shown["simulated"][2]) == pytest.approx(figures.seconds_per_step, rel=0.1)
    assert (shown["simulated"][6], shown["tail-batching"][6] == "0.0%") == ("0.0%", False)
    assert int(drawn.split()[0]) > 0


@pytest.mark.parametrize(("name", "is_said"), [("one-step", True), ("tail-batching", False)])
def test_what_is_assumed_is_said_after_the_table(
    run: Path, name: str, *, is_said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(run), "--schedule", name]) == 0
    said = capsys.readouterr().out.splitlines()[-2]
    assert said.startswith("Rollout and training (almost) never ran at the same time in this run") == is_said


def test_what_the_run_lacks_for_a_preset_is_said_before_the_table(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(run), "--schedule", "rollpacker"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("rollpacker: without lent instances, because the trainer has one replica, which is not")
    assert [line.split()[0] for line in said[-5:-2]] == ["recorded", "simulated", "rollpacker"]


def test_replay_and_advise_lend_the_same_instances(
    entries: list[Entry], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run lent nothing, so its journal does not say what could be lent."""
    first = entries[0].event
    assert isinstance(first, RunStarted)
    schedule = replace(first.schedule, lending=Lending())
    run = write_journal(tmp_path / "run", [replace(entries[0], event=RunStarted(schedule=schedule)), *entries[1:]])
    (run / "config.json").write_text(json.dumps(CONFIG | {"trainer": {"num_ranks": 2, "num_replicas": 2}}))
    assert main(["replay", str(run), "--schedule", "rollpacker"]) == 0
    replayed = capsys.readouterr().out
    assert main(["advise", str(run), "--steps", "4"]) == 0
    advised = capsys.readouterr().out
    told = "rollpacker: without changes of the parallel size, because the journal has one parallel size"
    assert [told in said for said in (replayed, advised)] == [True, True]
    assert ["without lent instances" in said for said in (replayed, advised)] == [False, False]


@pytest.mark.parametrize("arguments", [["advise"], ["replay", "--schedule", "async-cap"]])
def test_a_run_that_changed_its_parallel_size_is_not_simulated(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_journal(tmp_path / "run", journal(sized(schedule__num_steps=5), "planner")[1])
    (run / "config.json").write_text(json.dumps(CONFIG))
    assert main([*arguments, str(run)]) == 2
    said = capsys.readouterr()
    assert (said.err.splitlines()[-1], said.out) == (
        "tailrace: the run changes the parallel size of its instances ([1, 2, 4]); costs of several parallel sizes"
        " cannot be told apart yet from one journal",
        "",
    )


def test_parallel_sizes_that_the_run_never_used_are_left_out_and_it_is_said(
    entries: list[Entry], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = entries[0].event
    assert isinstance(first, RunStarted)
    layouts = tuple(Layout(division=Division(size), first=size - 1, count=1) for size in (1, 2))
    schedule = replace(first.schedule, parallelism=Parallelism(layouts=layouts))
    run = write_journal(tmp_path / "run", [replace(entries[0], event=RunStarted(schedule=schedule)), *entries[1:]])
    (run / "config.json").write_text(json.dumps(CONFIG))
    assert main(["replay", str(run), "--schedule", "rollpacker"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "rollpacker: without changes of the parallel size, because the journal has one parallel size" in said
    assert LEFT_OUT in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--schedule", "rollout-only"], "'rollout-only' does not train, so it has no steps to compare"),
        (["--schedule", "sinc"], "no schedule 'sinc'; there are sync, stage-overlap, tail-batching"),
        (["--fast"], "unexpected argument '--fast'"),
    ],
)
def test_what_cannot_be_replayed_is_a_sentence(
    run: Path, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(run), *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_what_is_no_journal_is_a_sentence(
    run: Path, entries: list[Entry], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(tmp_path / "absent")]) == 2
    assert main(["replay", str(run / "config.json"), "--schedule", "one-step"]) == 2
    assert main(["replay", str(write_journal(tmp_path / "late", entries[3:])), "--schedule", "one-step"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"tailrace: there is no run directory {tmp_path / 'absent'}"
    assert "config.json" in lines[1]
    assert "the journal has no format number" in lines[2]
