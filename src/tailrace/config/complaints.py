"""Error messages for files of settings: each names the key, what was expected and what was given.

Recipes and scenarios share them. Long values are shortened.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

_MOST_REPEATED = 60


class SettingsError(ValueError):
    """The settings cannot be used. The message says why and what to change."""


def read_table(path: Path, what: str) -> dict[str, Any]:
    """Read a TOML or YAML file. ``what``: what the file should be (a recipe, a scenario), for error messages."""
    try:
        text = path.read_text()
        data = tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text)
    except OSError as error:
        raise SettingsError(f"cannot read the {what} {path}: {error.strerror}; check the path") from None
    except (tomllib.TOMLDecodeError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot parse the {what} {path}: {_in_one_line(error)}; correct it there") from None
    if not isinstance(data, dict):
        raise SettingsError(f"the {what} {path} must be a table of settings, not {type(data).__name__}")
    return data


def sentences(error: ValidationError, data: Any, unknown: Callable[[str], str]) -> list[str]:
    """One sentence for each wrong key. ``unknown`` makes the sentence for a key that does not exist."""
    by_key: dict[str, list[Any]] = {}
    for item in error.errors():
        by_key.setdefault(_key(item, data), []).append(item)
    return [_sentence(name, items, unknown) for name, items in by_key.items()]


def _sentence(name: str, items: list[Any], unknown: Callable[[str], str]) -> str:
    first = items[0]
    match first["type"]:
        case "extra_forbidden":
            return unknown(name)
        case "missing":
            return f"{name} is missing"
        case "value_error":  # a sentence of our own
            return f"{name}: {first['ctx']['error']}"
    # A value that may be of several types has a complaint for each of them.
    messages = dict.fromkeys(item["msg"][0].lower() + item["msg"][1:] for item in items)
    return f"{name}: {' or '.join(messages)}, got {_short(first['input'])}"


def _key(item: Any, data: Any) -> str:
    """The dotted name of the wrong key, without the parts that pydantic adds for the types it tried."""
    parts = []
    for part in item["loc"]:
        if (isinstance(data, Mapping) and part in data) or (isinstance(data, list | tuple) and isinstance(part, int)):
            data = data[part]
            parts.append(str(part))
        elif item["type"] == "missing" and isinstance(data, Mapping):
            parts.append(str(part))
    return ".".join(parts)


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a table"
    text = repr(value)
    return text if len(text) <= _MOST_REPEATED else f"{text[:_MOST_REPEATED]}..."


def _in_one_line(error: Exception) -> str:
    """The error in one line; YAML's own message has several."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem} (at line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1})"
    return str(error).split("\n")[0]
