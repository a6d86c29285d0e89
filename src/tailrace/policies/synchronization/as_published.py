"""Synchronization policy: every instance pulls as soon as a version is published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from tailrace.core.fleet.policy import FleetView, RoutingPolicy
from tailrace.core.ids import InstanceId
from tailrace.core.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class AsPublished:
    is_planned: ClassVar[bool] = False

    @classmethod
    def of(cls, schedule: Schedule, routing: RoutingPolicy) -> Self:
        return cls()

    def choose(self, view: FleetView) -> list[InstanceId]:
        return [instance.instance for instance in view.instances if instance.version < view.published]
