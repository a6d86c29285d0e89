"""Every path that a page, a docstring or a comment names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "tailrace"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])
MODULES = sorted([*SOURCES.rglob("*.py"), *ROOT.glob("benchmarks/*.py"), *ROOT.glob("scripts/*.py")])
ONCE = {"CHANGELOG.md"}
"""Pages about the past."""
METRICS = {"data/epoch"}
"""Names of metrics that look like paths. `test_metrics.py` checks them."""

_NAMED = re.compile(r"`([A-Za-z_.][\w.-]*(?:/[\w.-]+)+/?)`")
_TOP = {path.name for path in SOURCES.iterdir() if path.is_dir()}
_ALL = [f"/{path.relative_to(ROOT)}" for path in SOURCES.rglob("*")]


def paths_in(text: str) -> set[str]:
    """Names in backticks that can only be files or folders of the project. ``NAME`` stands for a name to be chosen."""
    named = {name for name in _NAMED.findall(text) if "NAME" not in name} - METRICS
    return {name for name in named if name.endswith((".py", ".md", ".toml")) or name.partition("/")[0] in _TOP}


def is_there(name: str, page: Path) -> bool:
    """A path may begin at the project, at its sources or tests, beside the page, or at any folder of the sources."""
    bases = (ROOT, ROOT / "tests", page.parent)
    return any((base / name).exists() for base in bases) or any(path.endswith(f"/{name.strip('/')}") for path in _ALL)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in ONCE], ids=lambda page: page.stem)
def test_a_page_names_only_paths_that_exist(page: Path) -> None:
    assert {name for name in paths_in(page.read_text()) if not is_there(name, page)} == set()


def test_modules_name_only_paths_that_exist() -> None:
    missing = {
        (str(module.relative_to(ROOT)), name)
        for module in MODULES
        for name in paths_in(module.read_text())
        if not is_there(name, module)
    }
    assert missing == set()


def test_a_path_that_is_gone_is_found() -> None:
    named = paths_in("see `runtime/no_such_file.py`, `runtime/driver.py`, `sync`, `1/2`, and `core/nowhere/`")
    assert {name for name in named if not is_there(name, ROOT)} == {"runtime/no_such_file.py", "core/nowhere/"}
