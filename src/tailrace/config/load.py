"""Reads a recipe and command-line overrides into checked settings, or raises an error that says what to change.

A recipe is TOML or YAML; overrides are (dotted name, value written as YAML). Both may use the names of other systems
(``aliases.py``); a hint is printed for each. tomllib, PyYAML and pydantic do the parsing; this file joins them and
turns their errors into sentences.
"""

from __future__ import annotations

import difflib
import os
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from tailrace.config.aliases import AliasClash, advice, canonical_names, canonical_recipe, flatten, put
from tailrace.config.complaints import SettingsError as SettingsError  # for whoever loads settings
from tailrace.config.complaints import read_table, sentences
from tailrace.config.rules import broken_rules
from tailrace.config.settings import Settings


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
        raise SettingsError("\n".join(sentences(error, data, _unknown))) from None
    if broken := broken_rules(settings):
        raise SettingsError("\n".join(broken))
    return settings


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
        name = argument.split("=")[0]
        if not name.startswith("--"):
            raise SettingsError(f"unexpected argument {argument!r}")
        raise SettingsError(f"unknown setting {name}{_nearest(name.removeprefix('--'), prefix='--')}")


def leaves(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(dotted name, documentation) of every setting."""
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from leaves(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field.description or ""


def _value(name: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise SettingsError(f"cannot read the value of --{name}: {text!r}") from None


def _unknown(name: str) -> str:
    return f"unknown setting {name}{_nearest(name)}"


def _nearest(name: str, prefix: str = "") -> str:
    if other := advice(name):
        return f"; {other}"
    known = [leaf for leaf, _ in leaves(Settings)]
    sections = [name for name in Settings.model_fields if any(leaf.startswith(f"{name}.") for leaf in known)]
    # A section stands alone in a recipe only: on the command line, or with a key behind it, a setting was meant.
    is_alone = not prefix and "." not in name
    if is_alone and (close := difflib.get_close_matches(name, sections, n=1, cutoff=0.7)):
        return f"; did you mean {close[0]}?"
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    # The right key in the wrong section is the most common slip.
    last = name.rsplit(".", 1)[-1]
    found = [leaf for leaf in known if leaf.rsplit(".", 1)[-1] == last] or found
    if not found:
        by_key = {leaf.rsplit(".", 1)[-1]: leaf for leaf in known}
        found = [by_key[key] for key in difflib.get_close_matches(last, by_key, n=1, cutoff=0.6)]
    return f"; did you mean {prefix}{found[0]}?" if found else "; see `tailrace train --help` for all settings"
