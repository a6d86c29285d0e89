"""Never: no instance is lent to training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from tailrace.core.fleet.scaling import ScalingView
from tailrace.core.ids import InstanceId
from tailrace.core.schedule import Schedule


@dataclass(frozen=True, slots=True)
class NeverLent:
    lends: ClassVar[bool] = False
    needs_lengths: ClassVar[bool] = False

    @classmethod
    def of(cls, schedule: Schedule) -> Self:
        return cls()

    def choose(self, view: ScalingView) -> Sequence[InstanceId]:
        return ()
