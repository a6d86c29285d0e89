"""Migration policy that moves nothing: responses change their instance only when it pulls or is lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from tailrace.core.fleet.policy import FleetView
from tailrace.core.ids import InstanceId
from tailrace.core.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Never:
    is_planned: ClassVar[bool] = False

    @classmethod
    def of(cls, schedule: Schedule) -> Self:
        return cls()

    def choose(self, view: FleetView) -> list[tuple[InstanceId, int]]:
        return []
