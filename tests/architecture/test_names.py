"""A public class name means one thing in the whole package, and a response has one name."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "tailrace"

SHARED = {
    "Abort": "the core's command, and the message that carries it out",
    "Aborted": "the worker's message, and the event it becomes",
    "Accumulate": "the core's command, and the message that carries it out",
    "Command": "what each of the two deciders answers",
    "DropStep": "the core's command, and the message that carries it out",
    "Driver": "one for real time, two for virtual time",
    "Entry": "a line of each of the two journals",
    "Event": "what each of the two deciders is told",
    "FinishStep": "the core's command, and the message that carries it out",
    "Load": "a command of the cluster, in its journals; a message to the trainer",
    "PullFailed": "the worker's message, and the event it becomes",
    "Rooms": "the rooms of each of the two deciders",
    "World": "what is simulated: one run, or a cluster",
}
"""Names that stand in two places, and why that is right."""


@cache
def places() -> dict[str, list[str]]:
    found = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(PACKAGE)))
    return found


def test_a_public_class_name_stands_in_one_place() -> None:
    assert {name: files for name, files in places().items() if len(files) > 1 and name not in SHARED} == {}


def test_every_shared_name_is_still_shared() -> None:
    assert {name for name in SHARED if len(places()[name]) < 2} == set()


ELSEWHERE = {"config/other_names.py": "a setting of another system", "core/codec.py": "the name in older journals"}
"""Files that may call a response a trajectory, and why."""


def test_a_response_is_not_called_a_trajectory() -> None:
    found = {
        str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if "trajector" in path.read_text().lower()
    }
    assert found == set(ELSEWHERE)
