"""Fixed: instances are lent as soon as a certain part of the batch is complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from tailrace.core.fleet.scaling import ScalingView
from tailrace.core.ids import InstanceId
from tailrace.core.schedule import Schedule
from tailrace.policies.scaling.halves import least_busy


@dataclass(frozen=True, slots=True)
class LentAtShare:
    lends: ClassVar[bool] = True
    needs_lengths: ClassVar[bool] = False
    at: float
    share: float

    @classmethod
    def of(cls, schedule: Schedule) -> Self:
        return cls(schedule.lending.at, schedule.lending.share)

    def choose(self, view: ScalingView) -> Sequence[InstanceId]:
        return least_busy(view, self.share) if view.progress >= self.at else ()
