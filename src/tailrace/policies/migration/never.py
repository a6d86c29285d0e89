"""Work moves only when its instance pulls or is lost."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.core.ids import InstanceId
from tailrace.core.policy import FleetView


@dataclass(frozen=True, slots=True, kw_only=True)
class Never:
    def choose(self, view: FleetView) -> list[tuple[InstanceId, int]]:
        return []
