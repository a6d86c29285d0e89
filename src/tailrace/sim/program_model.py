"""Programs of responses that run against test cases: how long each case takes, and at which one a program fails.

    correct         passes every case; case c of problem p takes base(p, c) * pace
    endless         never ends in one of its cases, drawn at random: it runs until it is cut
    wrong early     fails in the first case
    wrong late      passes all cases but the last

    ln base(p, c) ~ N(ln median_s + N(0, between), across)      ln pace ~ U(-within, within), one for each response

So two correct programs for one problem differ in a case by less than the factor exp(2 * within). Cases run one after
another, and the first that fails ends the program. A program that is wrong or cut has the score 0 and the outcome OK.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tailrace.core.commands import CaseLimits
from tailrace.core.events import Scored
from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.outcomes import Outcome
from tailrace.sim.lengths import of_prompt, to_normal, uniforms


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCosts:
    share: float = 1.0
    """Share of the prompts whose responses are programs, relative to the shares of all other kinds."""
    num_workers: int
    """Programs that run at the same time."""
    num_cases: int = 8
    """Test cases of a problem."""
    median_s: float
    """Median over problems of the seconds of a case."""
    between: float = 0.0
    """Standard deviation, between problems, of the logarithm of the seconds of a case."""
    across: float = 0.0
    """The same between the cases of a problem."""
    within: float = 0.0
    """Largest deviation of a response from its problem, in the logarithm of the seconds."""
    endless_share: float = 0.0
    """Share of all programs that never end in one of their cases."""
    early_share: float = 0.5
    """Share of the wrong programs that fail in the first case."""
    start_s: float = 0.0
    """Seconds that a program needs beside those of its cases."""
    total_s: float = math.inf
    """The most seconds that all cases of a program may take together."""

    @property
    def most_ratio(self) -> float:
        """The largest ratio of the times of two correct programs in one case."""
        return math.exp(2 * self.within)

    def run(
        self,
        seed: int,
        response: ResponseId,
        is_correct: bool,
        limits: CaseLimits,
        told_from_s: Callable[[float], float],
    ) -> Scored:
        """Return how a program ends. ``is_correct``: whether it is, unless it is endless. ``told_from_s``: by the limit
        of a case, from how many seconds on it is reported if the program is correct."""
        fate, place, order, pace = uniforms(4, seed, "program", *response.group, response.member, response.attempt)
        fails_in, is_endless = self._failure(fate, place, order, is_correct)
        own_limits, seconds, slow = dict(limits.cases), 0.0, []
        for case in range(self.num_cases):
            takes = self._case_s(seed, response.group, case) * math.exp(self.within * (2 * pace - 1))
            if case == fails_in and is_endless:
                takes = math.inf
            limit_s = own_limits.get(case, limits.others_s)
            if takes > min(limit_s, self.total_s - seconds):
                cut = ((case, limit_s),) if limit_s <= self.total_s - seconds else ()
                return self._ended(response, seconds + min(limit_s, self.total_s - seconds), cut_cases=cut)
            seconds += takes
            if case == fails_in:
                return self._ended(response, seconds)
            if takes > told_from_s(limit_s):
                slow.append((case, round(takes, 3)))
        return self._ended(response, seconds, is_correct=True, slow_cases=tuple(slow))

    def is_endless(self, seed: int, response: ResponseId) -> bool:
        fate, *_ = uniforms(4, seed, "program", *response.group, response.member, response.attempt)
        return fate < self.endless_share

    def _failure(self, fate: float, place: float, order: float, is_correct: bool) -> tuple[int | None, bool]:
        """Return the case in which a program fails, None if in none, and whether it never ends there."""
        if fate < self.endless_share:
            return int(place * self.num_cases), True
        if is_correct:
            return None, False
        return (0 if order < self.early_share else self.num_cases - 1), False

    def _case_s(self, seed: int, group: GroupId, case: int) -> float:
        """Return the seconds of a case on a program of usual pace. A problem keeps its times in every epoch."""
        [problem] = of_prompt(1, seed, "problem", group.source, group.prompt)
        shift = self.between * to_normal(problem)
        if self.across:
            [own] = of_prompt(1, seed, "case", group.source, group.prompt, case)
            shift += self.across * to_normal(own)
        return self.median_s * math.exp(shift)

    def _ended(
        self,
        response: ResponseId,
        seconds: float,
        *,
        is_correct: bool = False,
        slow_cases: tuple[tuple[int, float], ...] = (),
        cut_cases: tuple[tuple[int, float], ...] = (),
    ) -> Scored:
        return Scored(
            response=response,
            outcome=Outcome.OK,
            score=float(is_correct),
            seconds=self.start_s + seconds,
            is_correct=is_correct,
            slow_cases=slow_cases,
            cut_cases=cut_cases,
        )
