"""The rooms of the core and of the cluster scheduler have few doors: only a room's own files touch its fields, the
others ask or tell it."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.cluster import rooms as cluster_rooms
from tailrace.cluster.groups.record import GroupRecord
from tailrace.cluster.jobs.record import JobRecord
from tailrace.cluster.phases.log import PhaseLog
from tailrace.cluster.rearranging.drift import Drift
from tailrace.core import rooms as core_rooms

SOURCE = Path(__file__).parents[2] / "src" / "tailrace"
ROOMS: dict[str, dict[str, type]] = {"core": core_rooms._ROOMS, "cluster": cluster_rooms.ROOMS}
MAX_FIELDS = 15
READABLE = {
    "core": {"training": {"version", "published"}, "run": {"limits"}, "fleet": {"costs"}},
    "cluster": {
        "groups": {"timetable", "num_begun"},
        "admission": {"num_rollout_devices", "free_rollout_devices", "order_changes_at"},
    },
}
"""Fields that everybody may read, because a question with another name would say the same."""
SHARED = {"core": {"responses", "run"}, "cluster": {"jobs", "groups"}}
"""Rooms whose records and life cycles the state of other rooms may know."""
RECORDS = {"jobs": JobRecord, "groups": GroupRecord, "phases": PhaseLog, "rearranging": Drift}
"""What the cluster scheduler knows about one job or node group, and the room that keeps it."""
EVERY_ROOM = [(house, room) for house, rooms in ROOMS.items() for room in rooms]


def uses(path: Path, rooms: dict[str, type]) -> Iterator[tuple[str, str, int, bool]]:
    """Return (room, attribute, line, is written) of every ``rooms.ROOM.ATTRIBUTE``, also through a local name."""
    tree = ast.parse(path.read_text())
    aliases = dict(_aliases(tree, rooms))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (room := _room(node.value, rooms, aliases)) is not None:
            yield room, node.attr, node.lineno, isinstance(node.ctx, ast.Store | ast.Del)


def _aliases(tree: ast.AST, rooms: dict[str, type]) -> Iterator[tuple[str, str]]:
    """Return local names of rooms, from ``training = rooms.training`` and ``a, b = rooms.a, rooms.b``."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target, value = node.targets[0], node.value
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(target.elts, value.elts, strict=False))
        for name, source in pairs:
            if isinstance(name, ast.Name) and (room := _room(source, rooms, {})) is not None:
                yield name.id, room


def _room(node: ast.expr, rooms: dict[str, type], aliases: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return aliases.get(node.id)
    is_room = isinstance(node, ast.Attribute) and node.attr in rooms
    owner = node.value if isinstance(node, ast.Attribute) else None
    names = {"rooms", "_rooms"}
    is_owned = (isinstance(owner, ast.Name) and owner.id in names) or (
        isinstance(owner, ast.Attribute) and owner.attr in names
    )
    return node.attr if is_room and is_owned and isinstance(node, ast.Attribute) else None


def fields(cls: type) -> set[str]:
    return {each.name for each in dataclasses.fields(cls)}


@pytest.mark.parametrize("house", ROOMS)
def test_only_a_rooms_own_files_touch_its_fields(house: str) -> None:
    found, rooms = [], ROOMS[house]
    for path in sorted((SOURCE / house).rglob("*.py")):
        for room, name, line, is_written in uses(path, rooms):
            is_readable = name in READABLE[house].get(room, ()) and not is_written
            if path.parent.name != room and name in fields(rooms[room]) and not is_readable:
                found.append(f"{path.relative_to(SOURCE)}:{line}: {room}.{name}")
    assert not found, "ask the room a question, or give it a notice:\n  " + "\n  ".join(found)


def test_the_check_finds_a_field_that_is_touched_from_outside(tmp_path: Path) -> None:
    file = tmp_path / "outside.py"
    file.write_text(
        "def f(rooms):\n    fleet = rooms.fleet\n    fleet.needs_plan = True\n    rooms.rewards.generated\n"
    )
    assert list(uses(file, ROOMS["core"])) == [("fleet", "needs_plan", 3, True), ("rewards", "generated", 4, False)]


@pytest.mark.parametrize(("house", "room"), EVERY_ROOM)
def test_a_room_has_few_fields(house: str, room: str) -> None:
    assert len(dataclasses.fields(ROOMS[house][room])) <= MAX_FIELDS


@pytest.mark.parametrize(("house", "room"), [(house, room) for house, room in EVERY_ROOM if room != "responses"])
def test_a_room_does_not_import_the_files_of_another(house: str, room: str) -> None:
    """Its state may know the records and life cycles of shared rooms; its rules may use the notices of others."""
    module = ast.parse((SOURCE / house / room / "room.py").read_text())
    imported = [node.module or "" for node in ast.walk(module) if isinstance(node, ast.ImportFrom)]
    others = [other for other in ROOMS[house] if other != room and other not in SHARED[house]]
    assert not [name for name in imported for other in others if name.startswith(f"tailrace.{house}.{other}.")]


def written(path: Path) -> Iterator[tuple[str, int]]:
    """Return (attribute, line) of every assignment to an attribute of something that is not ``self``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store | ast.Del):
            continue
        if not (isinstance(node.value, ast.Name) and node.value.id == "self"):
            yield node.attr, node.lineno


@pytest.mark.parametrize("room", RECORDS)
def test_a_record_is_changed_only_by_the_room_that_keeps_it(room: str) -> None:
    names, others = fields(RECORDS[room]), [each for each in ROOMS["cluster"] if each != room]
    assert len(names) <= MAX_FIELDS
    found = [
        f"{path.relative_to(SOURCE)}:{line}: .{name}"
        for other in (".", *others)
        for path in sorted((SOURCE / "cluster" / other).glob("*.py"))
        for name, line in written(path)
        if name in names
    ]
    assert not found, f"give the record of {room} a notice:\n  " + "\n  ".join(found)


def test_the_check_finds_a_record_that_is_changed_from_outside(tmp_path: Path) -> None:
    file = tmp_path / "outside.py"
    file.write_text("def f(job):\n    job.log.late_s += 1.0\n    job.seat, other = None, job.trace\n")
    assert list(written(file)) == [("late_s", 2), ("seat", 3)]
