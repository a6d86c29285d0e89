"""What `scripts/mutations.py` changes in a module, and how `scripts/mutants.py` names and keeps the results."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def mutations() -> ModuleType:
    return load("mutations")


@pytest.fixture(scope="module")
def mutants(mutations: ModuleType) -> ModuleType:
    return load("mutants")


def variants(mutations: ModuleType, text: str) -> list[str]:
    """The module after each change."""
    found = []
    for index in range(len(mutations.Mutations(ast.parse(text)).found)):
        mutation = mutations.Mutations(ast.parse(text)).found[index]
        mutation.apply()
        found.append(ast.unparse(mutation.tree))
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f(a < b)", ["pass", "f(a <= b)"]),
        ("x = a and b", ["x = a or b", "x = b", "x = a"]),
        ("x = a - 1", ["x = a + 1", "x = a - 2"]),
        ("x = min(a)", ["x = max(a)"]),
        ("f(a[:b])", ["pass", "f(a[:])"]),
        ("x = a in (b, c)", ["x = a not in (b, c)", "x = a in (c,)", "x = a in (b,)"]),
        ("TABLE = {a: b, c: d}", ["TABLE = {c: d}", "TABLE = {a: b}"]),
        ("x.y = True", ["pass", "x.y = False"]),
        ("x = 's' if not a else b", ["x = 's' if a else b", "x = 'sX' if not a else b"]),
        ("x = [a for a in b if c]", ["x = [a for a in b if not c]"]),
    ],
)
def test_each_change_is_made_once(mutations: ModuleType, text: str, expected: list[str]) -> None:
    assert sorted(variants(mutations, text)) == sorted(expected)


def test_a_function_is_changed_in_its_returns_and_assignments(mutations: ModuleType) -> None:
    text = "def f(a):\n    a = b\n    c = b\n    c = a\n    return c"
    found = variants(mutations, text)
    assert [variant.split("\n    ")[1:] for variant in found] == [
        ["pass", "c = b", "c = a", "return c"],
        ["a = b", "c = b", "pass", "return c"],
        ["a = b", "c = b", "c = a", "return None"],
    ], "a name's first value is not taken away"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('"""A docstring."""', "docstrings"),
        ("import a", "imports"),
        ("x: tuple[1, 2]", "annotations"),
        ("Alias = tuple[1, 2]", "annotations"),
        ("if TYPE_CHECKING:\n    x = 1", "TYPE_CHECKING"),
        ("class A:\n    __slots__ = ('a', 'b')", "__slots__"),
        ("__all__ = ['a', 'b']", "__all__"),
        ("@f(1)\nclass A:\n    pass", "decorators"),
        ("x = f'text {a}'", "texts"),
    ],
)
def test_what_is_left_alone_is_counted(mutations: ModuleType, text: str, reason: str) -> None:
    found = mutations.Mutations(ast.parse(text))
    assert found.found == []
    assert found.skipped[reason] >= 1


def test_the_text_of_an_error_is_left_alone_but_not_the_error(mutations: ModuleType) -> None:
    assert variants(mutations, "raise ValueError('no', 1)") == ["pass"]


def test_a_module_is_named_after_its_folder(mutants: ModuleType) -> None:
    assert mutants.module_name(mutants.CORE / "fleet" / "rules.py") == "tailrace.core.fleet.rules"
    assert mutants.module_name(mutants.CORE / "schedule" / "__init__.py") == "tailrace.core.schedule"


def test_mutants_are_drawn_from_every_folder_of_the_core(mutants: ModuleType) -> None:
    folders = {file.parent for file in mutants.CORE.rglob("*.py")}
    assert {job.file.parent for job in mutants.all_jobs()[0]} == folders


def test_a_run_that_is_stopped_goes_on_from_its_results(mutants: ModuleType, tmp_path: Path) -> None:
    job = mutants.all_jobs()[0][5]
    found = mutants.row(job, "killed", "a test")
    figures = {"fingerprint": "f", "stages": ["0 tests"]}
    mutants.save(tmp_path / "results.json", figures, {job.number: found})
    assert mutants.known(tmp_path / "results.json", figures) == {job.number: found}
    assert mutants.known(tmp_path / "results.json", {**figures, "fingerprint": "g"}) == {}, "the code has changed"


def test_a_run_passes_only_when_every_mutant_of_the_sample_was_tried(mutants: ModuleType) -> None:
    found = mutants.row(mutants.all_jobs()[0][5], "killed", "a test")
    assert mutants.judge([found], 0) == 0
    assert mutants.judge([found], 1) == 1


def test_every_test_file_of_a_stage_exists(mutants: ModuleType) -> None:
    stages = [stage for _, stages in mutants.PARTS.values() for _, stage in stages]
    tests = {text.removeprefix("--ignore=") for stage in stages for text in stage}
    files = {test for test in tests if test.startswith("tests/")}
    assert files
    assert [file for file in files if not (mutants.ROOT / file).exists()] == []


def test_every_reason_is_of_a_change_of_this_code(mutants: ModuleType) -> None:
    jobs = [job for folder, _ in mutants.PARTS.values() for job in mutants.all_jobs(folder)[0]]
    names = [mutants.name_of(mutants.row(job, "", "")) for job in jobs]
    reasons = [line for line in mutants.REASONS.read_text().splitlines() if line.startswith("* `")]
    assert reasons
    assert [line for line in reasons if not any(line.startswith(f"* {name}: ") for name in names)] == []
