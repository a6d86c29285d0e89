"""Short names of settings: ``learning_rate`` means ``trainer.learning_rate`` where only one section has it.

Sections inside sections do not count where an outer one has the name: ``timeout_s`` means ``reward.timeout_s``, and not
``reward.judge.timeout_s``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from tailrace.config.complaints import SettingsError
from tailrace.config.declared import leaves
from tailrace.config.settings import Settings


def full_name(name: str) -> str:
    """The dotted name; a name that is already full, a section or unknown is returned as it is."""
    if "." in name or name in Settings.model_fields:
        return name
    found = _outermost(owners().get(name, ()))
    if len(found) > 1:
        raise SettingsError(f"{name} is ambiguous: write one of {', '.join(found)}")
    return found[0] if found else name


def _outermost(names: Sequence[str]) -> list[str]:
    least = min((name.count(".") for name in names), default=0)
    return [name for name in names if name.count(".") == least]


def short_names() -> list[str]:
    """Every short name that ``full_name`` resolves or refuses."""
    return [name for name in owners() if name not in Settings.model_fields]


@cache
def owners() -> dict[str, tuple[str, ...]]:
    """The full names of the settings that share a short name, by short name."""
    found: dict[str, tuple[str, ...]] = {}
    for leaf, _ in leaves(Settings):
        key = leaf.rsplit(".", 1)[-1]
        found[key] = (*found.get(key, ()), leaf)
    return found
