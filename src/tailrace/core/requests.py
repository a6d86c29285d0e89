"""A request that is not answered yet."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.core.ids import Version


@dataclass(slots=True, kw_only=True)
class OpenRequest:
    """When a request was made, and for which version."""

    since: float
    version: Version
