"""What is known of the times of a problem's test cases, and the limits that follow from it.

A problem is one prompt of one source, whatever the pass over the data. A case is known by its number. Only a response
that passed every case says how long a case may take (its *anchor*: the most that any such response took). A response
that was cut says nothing about that: it may never have ended. Where most responses are cut, though, the limit may be
what fails them, so it is raised step by step, beside the anchor (``lifted``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tailrace.core.commands import CaseLimits
from tailrace.core.ids import GroupId
from tailrace.core.schedule.case_time import CaseTime


@dataclass(slots=True, kw_only=True)
class CaseTimes:
    """Times of one problem that was solved: some response passed all of its cases."""

    anchors: dict[int, float] = field(default_factory=dict)
    """Most seconds of a fully correct response, by case; only of cases where that can change a limit."""
    lifted: dict[int, float] = field(default_factory=dict)
    """Seconds at which most responses were cut, by case. The limit is then computed as if a correct response had taken
    them."""
    cuts: dict[int, int] = field(default_factory=dict)
    """Responses that were cut in a case since it was last lifted."""
    num_tried: int = 0
    """Responses that ran with limits of this problem since a case was last lifted."""

    def learn(self, slow: Iterable[tuple[int, float]]) -> None:
        """Note the slow cases of a fully correct response."""
        for case, seconds in slow:
            self.anchors[case] = max(seconds, self.anchors.get(case, 0.0))

    def note_try(self, cut: Iterable[tuple[int, float]], rules: CaseTime) -> None:
        """Note in which cases a response was cut, and at how many seconds. Lift cases in which most are."""
        self.num_tried += 1
        for case, seconds in cut:
            self.cuts[case] = self.cuts.get(case, 0) + 1
            if self.num_tried >= rules.lift_after and self.cuts[case] > rules.lift_share * self.num_tried:
                self.lifted[case] = max(seconds, self.lifted.get(case, 0.0))
                self.cuts.clear()
                self.num_tried = 0

    def limits(self, rules: CaseTime) -> CaseLimits:
        known = sorted({*self.anchors, *self.lifted})
        limits = ((case, self.limit_of(case, rules)) for case in known)
        return CaseLimits(rules.least_s, tuple(pair for pair in limits if pair[1] > rules.least_s))

    def limit_of(self, case: int, rules: CaseTime) -> float:
        longest = max(self.anchors.get(case, 0.0), self.lifted.get(case, 0.0))
        return min(max(rules.least_s, rules.factor * longest), rules.most_s)


def problem_of(group: GroupId) -> str:
    """The name of a problem: the same in every pass over the data."""
    return f"{group.source}:{group.prompt}"
