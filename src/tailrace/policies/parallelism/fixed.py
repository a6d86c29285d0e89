"""Fixed: every round has the parallel size with which the run starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from tailrace.core.fleet.parallelism import ParallelismView
from tailrace.core.schedule import Schedule
from tailrace.core.schedule.parallelism import Division


@dataclass(frozen=True, slots=True)
class FixedSize:
    changes: ClassVar[bool] = False

    @classmethod
    def of(cls, schedule: Schedule) -> Self:
        return cls()

    def choose(self, view: ParallelismView) -> Division:
        return view.of(view.size).division
