"""Synchronization policy: every instance pulls as soon as a version is published."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.core.fleet.policy import FleetView
from tailrace.core.ids import InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class AsPublished:
    def choose(self, view: FleetView) -> list[InstanceId]:
        return [instance.instance for instance in view.instances if instance.version < view.published]
