"""The list of commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tailrace.cli.main import _VERBS, main

NEEDED = {
    "compare": ["x", "--schedules", "sync"],
    "cluster": ["plan", "x"],
    "export": ["x", "y"],
    "bench": [],
    "version": [],
}
"""What a command cannot do without; default: one argument."""
TAKE_SETTINGS = {"train", "rollout", "compare", "profile"}


def test_the_readme_has_every_command() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text()
    assert [verb for verb in _VERBS if not re.search(rf"^\| `tailrace {verb}[ `]", text, re.MULTILINE)] == []


@pytest.mark.parametrize("verb", _VERBS)
def test_no_command_accepts_an_argument_that_it_does_not_know(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, *NEEDED.get(verb, ["x"]), "--colour", "red"]) == 2
    words = "unknown setting --colour" if verb in TAKE_SETTINGS else "unexpected argument '--colour'"
    assert capsys.readouterr().err.splitlines()[0].startswith(f"tailrace: {words}")
