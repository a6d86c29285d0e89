"""Short names of settings: ``learning_rate`` means ``trainer.learning_rate`` where only one section has it."""

from __future__ import annotations

from functools import cache

from tailrace.config.load import SettingsError, leaves
from tailrace.config.settings import Settings


def full_name(name: str) -> str:
    """The dotted name; a name that is already full, a section or unknown is returned as it is."""
    if "." in name or name in Settings.model_fields:
        return name
    owners = _owners().get(name, ())
    if len(owners) > 1:
        raise SettingsError(f"{name} is ambiguous: write one of {', '.join(owners)}")
    return owners[0] if owners else name


def short_names() -> list[str]:
    """Every short name that ``full_name`` resolves or refuses."""
    return [name for name in _owners() if name not in Settings.model_fields]


@cache
def _owners() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for leaf, _ in leaves(Settings):
        key = leaf.rsplit(".", 1)[-1]
        found[key] = (*found.get(key, ()), leaf)
    return found
