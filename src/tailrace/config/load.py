"""Reads a recipe and command-line overrides into checked settings, or raises an error that says what to change.

A recipe is TOML or YAML; overrides are (dotted name, value written as YAML). Both may use the names of other systems
(``aliases.py``); a hint is printed for each. tomllib, PyYAML and pydantic do the parsing; this file joins them and
turns their errors into sentences.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from tailrace.config.aliases import AliasClash, canonical_names, canonical_recipe, flatten, put
from tailrace.config.complaints import SettingsError as SettingsError  # for whoever loads settings
from tailrace.config.complaints import read_table, sentences
from tailrace.config.declared import leaves as leaves
from tailrace.config.rules import broken_rules
from tailrace.config.run_preset import with_rewards
from tailrace.config.settings import Settings
from tailrace.config.unknown_names import unknown, unknown_in


def print_hint(line: str) -> None:
    """Print a hint on stderr, because programs may read stdout."""
    print(line, file=sys.stderr, flush=True)


def load(
    recipe: str | None, overrides: Mapping[str, str] | None = None, *, hint: Callable[[str], None] = print_hint
) -> Settings:
    """Read a recipe (a path or a built-in name), apply overrides (dotted name to YAML text), and check the result."""
    given = {name: _value(name, text) for name, text in (overrides or {}).items()}
    data = read_recipe(recipe) if recipe is not None else {}
    if recipe is not None:
        data.setdefault("output_dir", f"runs/{Path(recipe).stem}")
    return assemble(data, given, hint=hint)


def assemble(
    recipe: Mapping[str, Any], overrides: Mapping[str, Any], *, hint: Callable[[str], None] = print_hint
) -> Settings:
    """Settings of a recipe's tree, checked. ``overrides`` (dotted names or trees) replace values of the recipe."""
    known = [name for name, _ in leaves(Settings)]
    try:
        # One after the other: an override may well give what the recipe gives under another name.
        data, hints = canonical_recipe(recipe, known)
        given, more = canonical_names(dict(flatten(overrides, known)), known)
        for name, value in given.items():
            put(data, name, value)
    except AliasClash as error:
        raise SettingsError(str(error)) from None
    settings = check(data)
    for line in dict.fromkeys([*hints, *more]):
        hint(line)
    return settings


def check(data: dict[str, Any]) -> Settings:
    try:
        settings = Settings.model_validate(data)
    except ValidationError as error:
        raise SettingsError("\n".join(sentences(error, data, lambda name: unknown_in(name, data)))) from None
    if broken := broken_rules(settings):
        raise SettingsError("\n".join(broken))
    return with_rewards(settings)


def read_recipe(recipe: str) -> dict[str, Any]:
    path = Path(recipe)
    if not os.path.exists(path) and path.suffix == "":  # unlike Path.exists, no error where it may not look
        return _builtin(recipe)
    return read_table(path, "recipe")


def _builtin(name: str) -> dict[str, Any]:
    folder = files("tailrace") / "assets" / "recipes"
    known = sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))
    if name not in known:
        raise SettingsError(f"no recipe '{name}': neither a file nor a built-in recipe ({', '.join(known)})")
    return tomllib.loads((folder / f"{name}.toml").read_text())


def refuse_unknown(arguments: Sequence[str]) -> None:
    """Raise ``SettingsError`` for an argument that is not a setting, and name the most similar setting."""
    for argument in arguments:
        name, has_value, value = argument.partition("=")
        if name.startswith("--"):
            raise SettingsError(unknown(name.removeprefix("--"), prefix="--"))
        advice = f"; write --{name.lstrip('+')} {value}" if has_value else ""
        raise SettingsError(f"unexpected argument {argument!r}{advice}")


def _value(name: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        advice = (
            '; for a table, write JSON, for example {"Yes": 1, "No": 0}; a text that begins with a brace needs quotes'
            if text.startswith("{")
            else ""
        )
        raise SettingsError(f"cannot read the value of --{name}: {text!r}{advice}") from None
