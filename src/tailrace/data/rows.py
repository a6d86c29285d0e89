"""Rows of a prompt file: one JSON object per line with `prompt` (text or a chat list), `answer` and anything else.

A mistake in a file is a `ValueError` that names the file and the line. `builtin:NAME` is a file of the package.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

BUILT_IN_PREFIX = "builtin:"

Row = Mapping[str, object]


def read_rows(path: str) -> Iterator[tuple[str, Row]]:
    """Every row with its place (`FILE, line N`); empty lines are skipped."""
    source = _locate(path)
    try:
        lines = source.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a jsonl file: it is not UTF-8 text ({error})") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            place = f"{path}, line {number}"
            yield place, _parse(line, place)


def _locate(path: str) -> Traversable:
    if path.startswith(BUILT_IN_PREFIX):
        folder = files("tailrace") / "assets" / "prompts"
        source = folder / f"{path.removeprefix(BUILT_IN_PREFIX)}.jsonl"
        if not source.is_file():
            known = sorted(item.name.removesuffix(".jsonl") for item in folder.iterdir())
            raise ValueError(f"there are no built-in prompts {path!r}; there are {', '.join(known) or 'none'}")
        return source
    if not Path(path).is_file():
        raise ValueError(f"there is no prompt file {path!r}")
    return Path(path)


def _parse(line: str, place: str) -> Row:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{place}: not a JSON object: {error}") from error
    if not isinstance(row, dict):
        raise ValueError(f"{place}: expected a JSON object, got {type(row).__name__}")
    if "prompt" not in row:
        raise ValueError(f"{place}: there is no 'prompt'; the row has {', '.join(row) or 'nothing'}")
    _check_prompt(row["prompt"], place)
    return row


def _check_prompt(prompt: object, place: str) -> None:
    if isinstance(prompt, str):
        return
    is_chat = isinstance(prompt, list) and all(
        isinstance(message, dict) and isinstance(message.get("role"), str) and "content" in message
        for message in prompt
    )
    if not is_chat or not prompt:
        raise ValueError(
            f"{place}: 'prompt' must be a string or a list of messages with 'role' and 'content', got {prompt!r:.80}"
        )
