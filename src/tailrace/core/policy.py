"""What a policy may see, and what it may answer: a frozen view in, a choice out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tailrace.core.ids import InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceView:
    """An instance that holds the right version and accepts work."""

    instance: InstanceId
    num_running: int
    capacity: int
    """Responses it may be given at the same time."""


class RoutingPolicy(Protocol):
    """Which instance generates the waiting members of a group; None: wait until one has room."""

    def choose(self, instances: Sequence[InstanceView]) -> InstanceId | None: ...
