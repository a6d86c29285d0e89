"""No file keeps the marks of a merge that was not finished."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MARK = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)


def test_no_file_has_conflict_marks() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("needs the repository")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    texts = [
        ROOT / name for name in listed.stdout.split("\0") if name.endswith((".md", ".py", ".toml", ".sh", "Makefile"))
    ]
    assert len(texts) > 500
    assert [str(path) for path in texts if path.exists() and MARK.search(path.read_text(encoding="utf-8"))] == []
