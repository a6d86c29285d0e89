"""What is said about a name that is no setting: what another system's name is here, or which setting was meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tailrace.config.aliases import advice, flatten
from tailrace.config.declared import leaves, sections
from tailrace.config.gone import GONE
from tailrace.config.names import owners
from tailrace.config.other_names import OTHER_NAMES
from tailrace.config.settings import Settings

_KEY_OF_TABLE = re.compile(r"(?P<table>.+)\.\d+\.(?P<key>[^.]+)")
_SIMILAR = 0.6
_SIMILAR_SECTION = 0.7


def unknown(name: str, *, prefix: str = "") -> str:
    """Return the sentence for one name. ``prefix``: what the command line writes before a setting."""
    return f"unknown setting {prefix}{name}; {_meant(name, prefix)}"


def unknown_in(name: str, tree: Mapping[str, Any]) -> str:
    """Return a sentence for a name in a tree of settings; if it is a section, one for each setting inside it."""
    value = _value(name, tree)
    if isinstance(value, Mapping) and value and advice(name) is None and not _section_like(name):
        return "\n".join(unknown(inner) for inner, _ in flatten(value, (), f"{name}."))
    return unknown(name)


def _meant(name: str, prefix: str) -> str:
    if name in GONE:
        return f"it is gone: {GONE[name].now}"
    if other := advice(name):
        return other
    if key := _KEY_OF_TABLE.fullmatch(name):
        found: Sequence[str] = _like(key["key"], _keys(key["table"]))
    else:
        # A section stands alone in a recipe only: on the command line a setting was meant.
        found = (not prefix and _section_like(name)) or _settings_like(name)
    if found and found[0] in OTHER_NAMES:
        return f"did you mean {prefix}{found[0]}? {advice(found[0])}"
    names = " or ".join(f"{prefix}{each}" for each in found)
    return f"did you mean {names}?" if names else "see `tailrace train --help-all` for all settings"


def _settings_like(name: str) -> Sequence[str]:
    """Return the settings that a name may mean, or the most similar name of another system."""
    by_key = owners()
    last = name.rsplit(".", 1)[-1]
    if last in by_key:  # the right key in the wrong section is the most common slip
        return by_key[last]
    section = name.rpartition(".")[0]
    # The key alone is compared where the section is right: a section in common does not make two names alike.
    inside = {
        leaf.rpartition(".")[2]: leaf for leaf, _ in leaves(Settings) if section and leaf.startswith(f"{section}.")
    }
    if near := _like(last, inside):
        return [inside[near[0]]]
    found = _like(last, [*by_key, *OTHER_NAMES])
    return by_key.get(found[0], found) if found else []


def _section_like(name: str) -> list[str]:
    known = {section for leaf, _ in leaves(Settings) if (section := leaf.rpartition(".")[0])}
    return difflib.get_close_matches(name, known, n=1, cutoff=_SIMILAR_SECTION)


def _keys(table: str) -> list[str]:
    return [key.name for each in sections(Settings()) if each.name == f"[[{table}]]" for key in each.settings]


def _like(name: str, known: Collection[str]) -> list[str]:
    return difflib.get_close_matches(name, known, n=1, cutoff=_SIMILAR)


def _value(name: str, tree: Any) -> Any:
    for part in name.split("."):
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree
