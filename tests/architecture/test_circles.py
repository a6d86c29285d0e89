"""No circles of imports: not between modules, and not between the folders of a layer."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "tailrace"
BY_FOLDER = ("commands", "engines", "runtime", "sizing", "trainer", "weights")
"""Layers whose folders stand above one another. The rooms of the core know one another through ``core/rooms.py``."""


def name_of(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    """Modules of ours that this one imports anywhere, also inside a function or for types only."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in modules else node.module for name in inner)


def graph(package: Path = PACKAGE) -> dict[str, set[str]]:
    modules = {name_of(path, package): path for path in package.rglob("*.py")}
    return {name: set(imported(path, modules)) - {name} for name, path in modules.items()}


def between_parts(layer: str, modules: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Which part of a layer (a folder or a file directly in it) imports which."""
    prefix = f"tailrace.{layer}."
    parts: dict[str, set[str]] = {}
    for name, found in modules.items():
        if name.startswith(prefix):
            own = name.removeprefix(prefix).partition(".")[0]
            others = {other.removeprefix(prefix).partition(".")[0] for other in found if other.startswith(prefix)}
            parts.setdefault(own, set()).update(others - {own})
    return parts


def circle(arrows: Mapping[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_circle_of_modules() -> None:
    assert circle(graph()) == []


@pytest.mark.parametrize("layer", BY_FOLDER)
def test_no_circle_of_folders(layer: str) -> None:
    parts = between_parts(layer, graph())
    assert len(parts) > 1
    assert circle(parts) == []


def test_a_circle_is_found() -> None:
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}


def test_a_circle_is_found_in_files_on_disk(tmp_path: Path) -> None:
    """Through the name of a package, a module named in full inside a function, and an import for types only."""
    package = tmp_path / "pack"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "inner" / "__init__.py").write_text("")
    (package / "a.py").write_text("from pack import inner, b\n")
    (package / "b.py").write_text("def f():\n    import pack.inner.c\n")
    (package / "inner" / "c.py").write_text("if TYPE_CHECKING:\n    from pack.a import x\n")
    (package / "outside.py").write_text("from pack.a import x\n")
    assert graph(package)["pack.a"] == {"pack.inner", "pack.b"}
    assert set(circle(graph(package))) == {"pack.a", "pack.b", "pack.inner.c"}
    (package / "b.py").write_text("import json\n")
    assert circle(graph(package)) == []
