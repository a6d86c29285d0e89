"""The policy of the rewards room: how long the test cases of a response may run."""

from __future__ import annotations

from typing import ClassVar, Protocol

from tailrace.core.commands import CaseLimits
from tailrace.core.ids import ResponseId
from tailrace.core.rewards.case_times import CaseTimes
from tailrace.core.schedule.case_time import CaseTime


class TimeoutPolicy(Protocol):
    """Chooses the limits of the test cases of a response."""

    learns: ClassVar[bool]
    """Whether it reads times. If not, none are kept, and the reward's own limit holds for every case."""

    def limits(self, response: ResponseId, times: CaseTimes | None, rules: CaseTime) -> CaseLimits:
        """``times``: what is known of the problem; None: no response has solved it yet."""
        ...
