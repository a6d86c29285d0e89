"""Fixed: every test case of every response may run equally long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from tailrace.core.commands import CaseLimits
from tailrace.core.ids import ResponseId
from tailrace.core.rewards.case_times import CaseTimes
from tailrace.core.schedule import CaseTime, Schedule


@dataclass(frozen=True, slots=True)
class FixedTimeouts:
    learns: ClassVar[bool] = False

    @classmethod
    def of(cls, schedule: Schedule) -> Self:
        return cls()

    def limits(self, response: ResponseId, times: CaseTimes | None, rules: CaseTime) -> CaseLimits:
        return CaseLimits(rules.most_s)
