"""The worked example of docs/sharing.md is what the command prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tailrace.cli.main import main

PAGE = (Path(__file__).parents[2] / "docs" / "sharing.md").read_text(encoding="utf-8")


def test_the_printed_plan_is_the_commands_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [(file, command, printed)] = re.findall(r"\$ cat 7b\.json\n(.*?)\$ tailrace (.*?)\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "7b.json").write_text(file)
    assert main(command.split()) == 0
    assert capsys.readouterr().out == printed
