"""docs/metrics.md explains every metric that a run can write and no other; no page names one that does not exist."""

from __future__ import annotations

import ast
import gzip
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

from tailrace.core.journal import decode
from tailrace.observe.metrics.response_metrics import failure_metrics
from tailrace.observe.metrics.rows import Metrics

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]
)
PRODUCERS = ("observe/metrics", "observe/costs", "trainer")
"""Folders whose dictionaries become rows. Other keys there (of checkpoints) begin with what is filled in."""
CLOSED = {"reward/num_*": set(failure_metrics([]))}
"""Names with a variable part of which the code has a complete list."""


def spelled(key: ast.expr | None) -> str | None:
    """A literal key; `*` stands for what is filled in."""
    if isinstance(key, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in key.values)
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None


def keys(tree: ast.AST) -> Iterator[str]:
    """Return the literal keys of dictionaries, and those under which something is stored."""
    for node in ast.walk(tree):
        found: list[ast.expr | None] = []
        if isinstance(node, ast.Dict):
            found = list(node.keys)
        elif isinstance(node, ast.DictComp):
            found = [node.key]
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            found = [node.slice]
        yield from filter(None, map(spelled, found))


def metrics_of(tree: ast.AST) -> set[str]:
    names = {key for key in keys(tree) if re.match(r"[a-z_]+/", key)}
    return set().union(*(CLOSED.get(name, {name}) for name in names))


@cache
def written() -> frozenset[str]:
    files = [path for folder in PRODUCERS for path in (ROOT / "src" / "tailrace" / folder).rglob("*.py")]
    return frozenset().union(*(metrics_of(ast.parse(path.read_text())) for path in files))


def explained() -> list[str]:
    """First cells of the page's tables, with `*` for words in capitals."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    names = re.findall(r"^\| `([^`]+)` \| [^|]{10,} \| [^|]+ \|$", page, re.MULTILINE)
    return [re.sub(r"\b[A-Z]+\b|(?<=_)N\b", "*", name) for name in names]


def test_the_page_explains_every_metric_that_code_can_write() -> None:
    assert sorted(written() - set(explained())) == []


def test_the_page_explains_no_metric_that_is_not_there_and_none_twice() -> None:
    assert sorted(set(explained()) - written()) == []
    assert len(explained()) == len(set(explained()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_names_a_metric_that_is_not_there(page: Path) -> None:
    groups = {name.partition("/")[0] for name in written()}
    named = re.findall(rf"`((?:{'|'.join(sorted(groups))})/[^`\s]*)`", page.read_text())
    metrics = [name for name in named if not name.endswith((".py", "/"))]
    assert [name for name in metrics if not any(fnmatch(name, each) or fnmatch(each, name) for each in written())] == []


def test_names_are_found_in_whatever_way_a_row_gets_them() -> None:
    source = """
row = {"reward/mean": 1.0, **{f"length/{name}": 2 for name in names}}
row["groups/num"] = 3
row |= {f"eval/{name}/avg@{k}": 4, f"{learner}/weights": 5, "plain": 6}
print(row["only/read"])
"""
    assert metrics_of(ast.parse(source)) == {"reward/mean", "length/*", "groups/num", "eval/*/avg@*"}


@pytest.mark.parametrize("run", ["own_runs/quickstart", "gpu_steps_h200/sync"])
def test_rows_of_real_runs_have_only_metrics_that_the_page_explains(run: str) -> None:
    metrics = Metrics()
    with gzip.open(ROOT / "benchmarks" / "results" / "journals" / f"{run}.jsonl.gz", "rt") as journal:
        rows = [row for line in journal for row in metrics.feed(decode(line))]
    names = {name for row in rows for name in row} - {"step"}
    assert {"reward/mean", "actor/lr", "timing_s/step"} < names
    assert [name for name in sorted(names) if not any(fnmatch(name, each) for each in explained())] == []
