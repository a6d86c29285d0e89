"""The folders of observe read the shared fold; the shared fold reads none of them."""

from __future__ import annotations

import ast
from pathlib import Path

import tailrace.observe

ROOT = Path(tailrace.observe.__path__[0])


def folders_used_by(folder: str) -> set[str]:
    found: set[str] = set()
    for path in (ROOT / folder).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tailrace.observe."):
                found.add(str(node.module).split(".")[2])
    return found - {folder}


def test_the_shared_fold_and_the_cost_fits_import_no_other_folder() -> None:
    assert folders_used_by("shared_fold") == folders_used_by("costs") == folders_used_by("journal") == set()


def test_accounts_of_time_and_metrics_build_on_the_shared_fold() -> None:
    assert folders_used_by("time_use") == {"shared_fold"}
    assert folders_used_by("metrics") == {"shared_fold", "journal"}
    assert folders_used_by("prompts") == {"shared_fold", "metrics"}
