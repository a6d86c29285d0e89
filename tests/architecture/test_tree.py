"""The tree in ARCHITECTURE.md shows every folder of the package, and no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "tailrace"
WITH_CONTENTS_OF_THEIR_OWN = {"assets"}
"""Folders of data: what is inside them is not part of the design."""

_LINE = re.compile(r"^(?P<indent>(?:  )+)(?P<name>[a-z_]+)/(?: |$)")


def drawn(page: str) -> list[str]:
    """The folders of the tree, as paths, in its order."""
    tree = page.split("## The tree", 1)[1].split("```")[1]
    folders: list[str] = []
    above: list[str] = []
    for line in tree.splitlines():
        if (found := _LINE.match(line)) is not None:
            above[len(found["indent"]) // 2 - 1 :] = [found["name"]]
            folders.append("/".join(above))
    return folders


def standing() -> set[str]:
    """Folders with files. What is left of a folder that was moved, compiled files, does not count."""
    files = (path.relative_to(PACKAGE) for path in PACKAGE.rglob("*") if path.is_file())
    kept = [file for file in files if "__pycache__" not in file.parts]
    folders = {folder for file in kept for folder in file.parents if folder.parts}
    return {str(folder) for folder in folders if not WITH_CONTENTS_OF_THEIR_OWN & set(folder.parts[:-1])}


def test_the_tree_shows_every_folder_once() -> None:
    folders = drawn((ROOT / "ARCHITECTURE.md").read_text())
    assert len(folders) == len(set(folders))
    assert set(folders) == standing()


def test_folders_inside_folders_are_read() -> None:
    page = "## The tree\n```\nsrc/\n  core/   DECIDES: rules.py\n    fleet/\n  sim/  time\n```"
    assert drawn(page) == ["core", "core/fleet", "sim"]
