"""Names of settings in other systems (``other_names.py``): where they may be used, and what is said about them.

* A name that means a setting may be used at the top of a recipe, in the section of that setting, or under the full name
  that its own system gives it; `-` and `_` are the same. A hint names the setting.
* A setting may be given once: an alias beside the setting itself, or two aliases of it, is an error.
* Any other name is refused, with what to write instead if something is known about it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tailrace.config.other_names import OTHER_NAMES, Instead, Same

ALIASES: dict[str, str] = {
    name: answer.setting if isinstance(answer, Same) else answer
    for name, answer in OTHER_NAMES.items()
    if not isinstance(answer, Instead)
}


class AliasClash(ValueError):
    """A setting is given more than once, under different names."""


def canonical_names(values: Mapping[str, Any], known: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the values under our dotted names, and a hint for each alias. Unknown names are kept as they are."""
    found: dict[str, Any] = {}
    origin: dict[str, str] = {}
    hints: list[str] = []
    for name, value in values.items():
        target = _meaning(name, known)
        if target in found:
            first, second = sorted((origin[target], name), key=lambda given: given != target)
            raise AliasClash(f"{first} and {second} both set {target}; give it once")
        if target != name:
            hints.append(f"hint: {name} is {target} here{_remark(name)}")
        found[target], origin[target] = value, name
    return found, hints


def canonical_recipe(recipe: Mapping[str, Any], known: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """Apply ``canonical_names`` to a tree of sections."""
    flat, hints = canonical_names(dict(flatten(recipe, known)), known)
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        put(tree, name, value)
    return tree, hints


def put(tree: dict[str, Any], name: str, value: Any) -> None:
    """Set a dotted name in a tree of sections."""
    *sections, key = name.split(".")
    place = tree
    for section in sections:
        place = place.setdefault(section, {})
        if not isinstance(place, dict):
            raise AliasClash(f"{section} is a section of settings, but it is given as {place!r}, and so is {name}")
    if isinstance(place.get(key), dict) and not isinstance(value, dict):
        raise AliasClash(f"{name} is a section of settings, but it is also given as {value!r}")
    place[key] = value


def _meaning(name: str, known: Collection[str]) -> str:
    if name in known:
        return name
    plain = name.replace("-", "_")
    section, _, key = plain.rpartition(".")
    if plain in ALIASES:
        return ALIASES[plain]
    target = ALIASES.get(key, "")
    return target if section and target.rpartition(".")[0] == section else name


def _remark(name: str) -> str:
    answer = _answer(name)
    return f"; {answer.but}" if isinstance(answer, Same) else ""


def advice(name: str) -> str | None:
    """Return what to write instead of another system's name that is refused; None if nothing is known about it."""
    answer = _answer(name)
    if isinstance(answer, Instead):
        return answer.text
    if answer is not None:
        return f"it is {answer.setting if isinstance(answer, Same) else answer} here"
    section = name.rpartition(".")[0]
    return advice(section) if section and isinstance(_answer(section), Instead) else None


def _answer(name: str) -> str | Same | Instead | None:
    """Return what is known about a name, or about its last parts: sections differ from system to system."""
    parts = name.replace("-", "_").split(".")
    ends = (".".join(parts[start:]) for start in range(len(parts)))
    return next((OTHER_NAMES[end] for end in ends if end in OTHER_NAMES), None)


def flatten(section: Mapping[str, Any], known: Collection[str], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Return (dotted name, value) of every setting in a tree. A setting whose value is a table counts as one value."""
    for key, value in section.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value and name not in known:
            yield from flatten(value, known, f"{name}.")
        else:
            yield name, value
