"""No module imports itself through others."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
WITHOUT_CIRCLES = ("tailrace.cluster",)
"""Packages in which there are none."""


def imports_of(package: str, source: Path = SOURCE) -> dict[str, set[str]]:
    """Return for each module of the package the modules of the package that it imports, wherever the import is."""
    folder = source.joinpath(*package.split("."))
    paths = {_name(path, source): path for path in folder.rglob("*.py")}
    return {name: _imported(path, paths.keys()) - {name} for name, path in paths.items()}


def _name(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(path: Path, modules: Collection[str]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in modules else node.module)
    return {name for name in found if name in modules}


def circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Return circles of imports, each as the modules on the way from a module back to itself."""
    found, done = [], set[str]()

    def visit(name: str, way: list[str]) -> None:
        if name in way:
            found.append([*way[way.index(name) :], name])
        elif name not in done:
            for other in sorted(imports[name]):
                visit(other, [*way, name])
            done.add(name)

    for name in sorted(imports):
        visit(name, [])
    return found


@pytest.mark.parametrize("package", WITHOUT_CIRCLES)
def test_there_are_no_circles_of_imports(package: str) -> None:
    assert not [" -> ".join(circle) for circle in circles(imports_of(package))]


def test_the_check_finds_a_circle(tmp_path: Path) -> None:
    folder = tmp_path / "pack"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "inner" / "__init__.py").write_text("")
    (folder / "a.py").write_text("from pack import inner, b\n")
    (folder / "b.py").write_text("def f():\n    import pack.inner.c\n")
    (folder / "inner" / "c.py").write_text("from pack.a import x\n")
    assert circles(imports_of("pack", tmp_path)) == [["pack.a", "pack.b", "pack.inner.c", "pack.a"]]
