"""The list of commands."""

from __future__ import annotations

import re
from pathlib import Path

from tailrace.cli.main import _VERBS


def test_the_readme_has_every_command() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text()
    assert [verb for verb in _VERBS if not re.search(rf"^\| `tailrace {verb}[ `]", text, re.MULTILINE)] == []
