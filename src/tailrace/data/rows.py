"""Reads the rows of a prompt source. Each row comes with its place, for error messages.

    path/to/file.jsonl                          one JSON object per line
    path/to/file.parquet                        a table
    path/to/directory[:split]                   a Hugging Face dataset saved with `save_to_disk`
    hf:owner/name[/config][:split]              a Hugging Face dataset of the hub, or a directory of data files
    reasoning-gym:TASK[?size=500&seed=0&...]    generated tasks
    builtin:NAME                                a file of the package

A mistake is a `ValueError` that names the file and the line or row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from tailrace.data.row import Row

BUILT_IN_PREFIX = "builtin:"
HUB_PREFIX = "hf:"
GYM_PREFIX = "reasoning-gym:"


def read_rows(path: str) -> Iterator[tuple[str, Row]]:
    """Every row with its place: `FILE, line N` or `SOURCE, row N`, counted from 1. Empty lines are skipped."""
    # Each reader needs a package of its own, so it is imported only where its sources are asked for.
    if path.startswith(GYM_PREFIX):
        from tailrace.data.gym_tasks import read_tasks

        return _numbered(path, read_tasks(path.removeprefix(GYM_PREFIX)))
    if path.startswith(HUB_PREFIX):
        from tailrace.data.tables import read_hub

        return _numbered(path, read_hub(path.removeprefix(HUB_PREFIX)))
    if not path.startswith(BUILT_IN_PREFIX) and (saved := _saved_dataset(path)) is not None:
        from tailrace.data.tables import read_saved

        return _numbered(path, read_saved(*saved))
    source = _locate(path)
    if source.name.endswith(".parquet"):
        from tailrace.data.tables import read_parquet

        return _numbered(path, read_parquet(path))
    return _read_jsonl(source, path)


def _numbered(path: str, rows: Iterator[Row]) -> Iterator[tuple[str, Row]]:
    for number, row in enumerate(rows, start=1):
        yield f"{path}, row {number}", row


def _saved_dataset(path: str) -> tuple[str, str] | None:
    """The directory and the split (or an empty string), if the path names a directory."""
    directory, _, split = path.rpartition(":")
    if Path(path).is_dir():
        return path, ""
    return (directory, split) if directory and Path(directory).is_dir() else None


def _locate(path: str) -> Traversable:
    if path.startswith(BUILT_IN_PREFIX):
        folder = files("tailrace") / "assets" / "prompts"
        source = folder / f"{path.removeprefix(BUILT_IN_PREFIX)}.jsonl"
        if not source.is_file():
            known = sorted(item.name.removesuffix(".jsonl") for item in folder.iterdir())
            raise ValueError(f"there are no built-in prompts {path!r}; there are {', '.join(known) or 'none'}")
        return source
    if not Path(path).is_file():
        raise ValueError(f"there is no prompt file {path!r}{_maybe_on_the_hub(path) or '; correct the path'}")
    return Path(path)


def _maybe_on_the_hub(path: str) -> str:
    owner, _, name = path.partition("/")
    looks_like_an_id = bool(owner and name) and "/" not in name and "." not in owner and not Path(name).suffix
    return f"; a dataset of the Hugging Face hub is written {HUB_PREFIX}{path}" if looks_like_an_id else ""


def _read_jsonl(source: Traversable, path: str) -> Iterator[tuple[str, Row]]:
    try:
        lines = source.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a jsonl file: it is not UTF-8 text ({error})") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            place = f"{path}, line {number}"
            yield place, _parse(line, place)


def _parse(line: str, place: str) -> Row:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{place}: not a JSON object: {error}") from error
    if not isinstance(row, dict):
        raise ValueError(f"{place}: expected a JSON object, got {type(row).__name__}")
    return row
