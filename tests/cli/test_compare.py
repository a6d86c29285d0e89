"""Names of schedules that `tailrace compare` understands."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tailrace.cli import compare
from tailrace.cli.main import main


def settings_of(name: str, folder: Path) -> object:
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    compare.configure(parser)
    options = parser.parse_args(["long-tail", "--schedules", name, "--output_dir", str(folder)])
    return compare._settings(options, name)


@pytest.mark.parametrize(
    ("name", "preset", "bound"), [("staleflow@3", "staleflow", 3), ("staleflow", "staleflow", None)]
)
def test_a_name_is_a_preset_or_a_preset_with_a_bound(tmp_path: Path, name: str, preset: str, bound: int | None) -> None:
    settings = settings_of(name, tmp_path)
    assert (settings.schedule.preset, settings.schedule.max_staleness) == (preset, bound)
    assert settings.output_dir == tmp_path / name


def test_a_bound_that_is_none_is_refused_before_any_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "runs"
    assert main(["compare", "long-tail", "--schedules", "sync,staleflow@x", "--output_dir", str(folder)]) == 2
    assert "schedule.max_staleness" in capsys.readouterr().err
    assert not folder.exists()
