"""Pull as soon as a version is published."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.core.ids import InstanceId
from tailrace.core.policy import FleetView


@dataclass(frozen=True, slots=True, kw_only=True)
class AsPublished:
    def choose(self, view: FleetView) -> list[InstanceId]:
        return [instance.instance for instance in view.instances if instance.version < view.published]
