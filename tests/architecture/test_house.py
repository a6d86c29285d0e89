"""The house rules that a machine can hold: purity of the deciding layers, and the shape budget."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "tailrace"
PURE = ("core", "policies", "cluster")
ALLOWED_MODULES = {
    "__future__", "bisect", "collections", "dataclasses", "enum", "functools", "heapq", "itertools", "json", "math",
    "operator", "statistics", "types", "typing",
}  # fmt: skip
"""Of the standard library: nothing that reads a clock, a file, the network, randomness or the process."""
IMPURE_CALLS = {"open", "print", "input", "eval", "exec", "hash", "id"}
"""``hash`` and ``id`` differ between processes, so no decision may rest on them."""

FILE_LINES, FUNCTION_LINES = 400, 60
EXCEPTIONS: dict[str, str] = {}
"""Files or functions over the budget: name to reason."""


def modules(*layers: str) -> list[Path]:
    return sorted(path for layer in layers for path in (SOURCE / layer).rglob("*.py"))


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def impurities(text: str) -> list[str]:
    tree = ast.parse(text)
    found = []
    for name in imports(tree):
        parts = name.split(".")
        is_pure = parts[0] in ALLOWED_MODULES or (parts[0] == "tailrace" and parts[1] in PURE)
        if not is_pure:
            found.append(f"imports {name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            found.append(f"line {node.lineno}: calls {node.func.id}()")
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.Global):
            found.append(f"line {node.lineno}: {type(node).__name__}")
    return found


@pytest.mark.parametrize("path", modules(*PURE), ids=lambda path: str(path.relative_to(SOURCE)))
def test_deciding_layers_are_pure(path: Path) -> None:
    assert impurities(path.read_text()) == []


@pytest.mark.parametrize(
    "text",
    ["import time", "from random import Random", "print(1)", "async def f(): ...", "from tailrace.runtime import x"],
)
def test_the_purity_test_can_fail(text: str) -> None:
    assert impurities(text)


def test_files_and_functions_keep_the_shape_budget() -> None:
    over = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = str(path.relative_to(SOURCE))
        text = path.read_text()
        if text.count("\n") > FILE_LINES:
            over.append(name)
        for node in ast.walk(ast.parse(text)):
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_function and (node.end_lineno or 0) - node.lineno + 1 > FUNCTION_LINES:
                over.append(f"{name}:{node.name}")
    assert [name for name in over if name not in EXCEPTIONS] == []
    assert [name for name in EXCEPTIONS if name not in over] == [], "exceptions that are no longer needed"


def test_no_drawer_modules() -> None:
    drawers = {"utils", "common", "misc", "helpers", "manager"}
    assert [path for path in SOURCE.rglob("*.py") if path.stem in drawers] == []


LIGHT = {
    "core": (
        "import tailrace.core.coordinator, tailrace.core.journal, tailrace.policies.routing.least_loaded,"
        " tailrace.config.load, tailrace.cli.main",
        {"torch", "transformers", "numpy", "safetensors", "ray"},
    ),
    "controller": (
        "import tailrace.commands.train; from tailrace.data.models import resolve_model;"
        " from tailrace.data.tokenizer import load_tokenizer; load_tokenizer(resolve_model('tiny-arith'))('1+2=')",
        {"torch", "ray"},
    ),
    "rollout": ("import tailrace.workers.rollout_worker", {"transformers", "ray"}),
}
"""How a process starts, and the heavy packages that it must not wait for. Rewards: ``tests/workers``."""


@pytest.mark.parametrize("process", LIGHT)
def test_a_process_starts_without_what_it_does_not_need(process: str) -> None:
    start, heavy = LIGHT[process]
    script = f"import sys; {start}; found = {heavy} & set(sys.modules); sys.exit(str(found) if found else 0)"
    subprocess.run([sys.executable, "-c", script], check=True)
