"""`tailrace compare` before it runs anything. Whole comparisons: `tests/end_to_end/test_compare.py`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from tailrace.cli import compare
from tailrace.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--schedules", "sync,sync"], "--schedules names 'sync' twice"),
        (["--schedules", "sync,rollout-only"], "--schedules: 'rollout-only' does not train"),
        (["--schedules", "sync,sinc"], "--schedules: no schedule 'sinc'; there are sync, stage-overlap, tail-batching"),
        (["--schedules", "sync,one-step", "--placement", "colocated"], "the schedule does not work: colocated"),
        (
            ["--schedules", "sync", "--json", "no/such/folder.json"],
            "--json: no/such/folder.json is no place for a file",
        ),
        (["--schedules", "sync,staleflow@x"], "schedule.max_staleness"),
        (["--schedules", "sync", "--no-such-setting", "1"], "unknown setting --no-such-setting"),
    ],
)
def test_what_cannot_be_compared_is_a_sentence_before_any_work(
    tmp_path: Path, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "runs"
    assert main(["compare", "quickstart", "--output_dir", str(output), *arguments]) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert said.out == ""
    assert not output.exists()


def test_a_dry_run_shows_the_settings_of_every_schedule_and_a_hint_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "runs"
    arguments = ["--schedules", "sync, one-step", "--output_dir", str(output), "--dry-run", "--num_generations", "4"]
    arguments += ["--show-settings", "--model.device", "cpu"]
    assert main(["compare", "quickstart", *arguments]) == 0
    said = capsys.readouterr()
    shown = json.loads(said.out)
    assert {name: settings["schedule"]["preset"] for name, settings in shown.items()} == {
        "sync": "sync",
        "one-step": "one-step",
    }
    assert {settings["rollout"]["n_samples_per_prompt"] for settings in shown.values()} == {4}
    assert shown["one-step"]["output_dir"] == str(output / "one-step")
    assert said.err.count("num_generations") == 1
    assert not output.exists()


@pytest.mark.parametrize(
    ("name", "preset", "bound"), [("staleflow@3", "staleflow", 3), ("staleflow", "staleflow", None)]
)
def test_a_name_is_a_preset_or_a_preset_with_a_bound(tmp_path: Path, name: str, preset: str, bound: int | None) -> None:
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    compare.configure(parser)
    options = parser.parse_args(["long-tail", "--schedules", name, "--output_dir", str(tmp_path)])
    settings = compare._settings(options, name)
    assert (settings.schedule.preset, settings.schedule.max_staleness) == (preset, bound)
    assert settings.output_dir == tmp_path / name
