"""Migration policy that moves nothing: responses change their instance only when it pulls or is lost."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.core.fleet.policy import FleetView
from tailrace.core.ids import InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class Never:
    def choose(self, view: FleetView) -> list[tuple[InstanceId, int]]:
        return []
