"""No file keeps the marks of a merge that was not finished."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "docs", "benchmarks", "scripts", "examples", "scenarios")
MARK = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)


def test_no_file_has_conflict_marks() -> None:
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")]
    texts = [path for path in (*found, *ROOT.glob("*.*")) if path.suffix in (".md", ".py", ".toml", ".sh")]
    assert len(texts) > 500
    assert [path for path in texts if MARK.search(path.read_text(encoding="utf-8"))] == []
