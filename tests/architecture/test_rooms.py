"""The rooms of the core have few doors: only a room's own files touch its fields, the others ask or tell it."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.core import rooms

CORE = Path(__file__).parents[2] / "src" / "tailrace" / "core"
ROOMS: dict[str, type] = rooms._ROOMS
MAX_FIELDS = 15
READABLE = {"training": {"version", "published"}, "run": {"limits"}, "fleet": {"costs"}}
"""Fields that everybody may read, because a question with another name would say the same."""


def uses(path: Path) -> Iterator[tuple[str, str, int, bool]]:
    """Return (room, attribute, line, is written) of every ``rooms.ROOM.ATTRIBUTE``, also through a local name."""
    tree = ast.parse(path.read_text())
    aliases = dict(_aliases(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (room := _room(node.value, aliases)) is not None:
            yield room, node.attr, node.lineno, isinstance(node.ctx, ast.Store | ast.Del)


def _aliases(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Return local names of rooms, from ``training = rooms.training`` and ``a, b = rooms.a, rooms.b``."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target, value = node.targets[0], node.value
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(target.elts, value.elts, strict=False))
        for name, source in pairs:
            if isinstance(name, ast.Name) and (room := _room(source, {})) is not None:
                yield name.id, room


def _room(node: ast.expr, aliases: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return aliases.get(node.id)
    is_room = isinstance(node, ast.Attribute) and node.attr in ROOMS
    owner = node.value if isinstance(node, ast.Attribute) else None
    names = {"rooms", "_rooms"}
    is_owned = (isinstance(owner, ast.Name) and owner.id in names) or (
        isinstance(owner, ast.Attribute) and owner.attr in names
    )
    return node.attr if is_room and is_owned and isinstance(node, ast.Attribute) else None


def test_only_a_rooms_own_files_touch_its_fields() -> None:
    found = []
    for path in sorted(CORE.rglob("*.py")):
        for room, name, line, is_written in uses(path):
            is_field = name in {each.name for each in dataclasses.fields(ROOMS[room])}
            is_allowed = path.parent.name == room or not is_field or (name in READABLE.get(room, ()) and not is_written)
            if not is_allowed:
                found.append(f"{path.relative_to(CORE)}:{line}: {room}.{name}")
    assert not found, "ask the room a question, or give it a notice:\n  " + "\n  ".join(found)


def test_the_check_finds_a_field_that_is_touched_from_outside(tmp_path: Path) -> None:
    file = tmp_path / "outside.py"
    file.write_text("def f(rooms):\n    fleet = rooms.fleet\n    fleet.needs_plan = True\n    rooms.rewards.scoring\n")
    assert list(uses(file)) == [("fleet", "needs_plan", 3, True), ("rewards", "scoring", 4, False)]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_few_fields(room: str) -> None:
    assert len(dataclasses.fields(ROOMS[room])) <= MAX_FIELDS


@pytest.mark.parametrize("room", [room for room in ROOMS if room != "responses"])
def test_a_room_does_not_import_the_files_of_another(room: str) -> None:
    """Its state may know the life cycles of responses and the ledger; its rules may use the notices of ``closing``."""
    module = ast.parse((CORE / room / "room.py").read_text())
    imported = [node.module or "" for node in ast.walk(module) if isinstance(node, ast.ImportFrom)]
    others = [other for other in ROOMS if other not in (room, "responses", "run")]
    assert not [name for name in imported for other in others if name.startswith(f"tailrace.core.{other}.")]
