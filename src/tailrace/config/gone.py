"""Settings that earlier releases had and this one has not: what happens now is what their default meant.

A run of an earlier release names them in its ``config.json``. One that had its default is ignored. One that had another
value is part of the comparison with today's settings (``continuation.py``), so that the refusal names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Gone(NamedTuple):
    default: Any
    now: str
    """What to do without the setting, for someone who gives it."""


GONE: dict[str, Gone] = {
    "ray.local_cpus": Gone(None, "a Ray that the run starts has the CPUs that its workers need"),
    "ray.local_object_store_mb": Gone(
        512, "a Ray that the run starts has 512 MB; for more, start it yourself and set ray.address (docs/ray.md)"
    ),
}


def without_gone(
    stored: Mapping[str, Any], gone: Mapping[str, Gone], prefix: str = ""
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a tree of settings without those that are gone, and by name the gone ones that had another value."""
    kept: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for key, value in stored.items():
        name = prefix + key
        if name in gone:
            others |= {} if value == gone[name].default else {name: value}
        elif isinstance(value, Mapping):
            kept[key], inner = without_gone(value, gone, f"{name}.")
            others |= inner
        else:
            kept[key] = value
    return kept, others
