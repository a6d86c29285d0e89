"""How rewards come out and how long they take, by part of the score: what functions, programs and the judge cost.

Everything about a response is keyed by its id, like its length. A score is 1 or 0: each prompt has a solve rate of its
own (some prompts are never solved, some always), which is what dynamic sampling filters by. Whether a response is
solved does not depend on the part that scores it.

Each prompt is of one kind: it is scored by a function, by test cases or by a judge. The other parts abstain. Only in
costs that were fitted to a run (``FittedPart``) several parts may score one response.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tailrace.core.commands import CaseLimits
from tailrace.core.events import Scored
from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.outcomes import Outcome, Part
from tailrace.sim.judge_model import JudgeCosts
from tailrace.sim.lengths import of_prompt, to_normal, uniforms
from tailrace.sim.program_model import ProgramCosts

Scoring = Callable[[ResponseId, CaseLimits | None], Scored]
"""Scores one response under these limits of its test cases; None: the reward's own limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardKind:
    """How long the rewards of one kind of prompt take."""

    share: float = 1.0
    """Share of the prompts that are of this kind, relative to the shares of all other kinds."""
    median_s: float = 0.0
    spread: float = 0.0
    """Standard deviation of the logarithm of the seconds."""
    timeout_share: float = 0.0
    """Share of the responses whose reward reaches the time limit."""
    timeout_s: float = 30.0

    def seconds(self, chance: float, duration: float) -> float:
        """Return the seconds of a reward; at least ``timeout_s``: it reaches its limit."""
        if chance < self.timeout_share:
            return self.timeout_s
        return self.median_s * math.exp(self.spread * to_normal(duration)) if self.spread else self.median_s


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedPart:
    """The workers of one part, as they were in a recorded run."""

    part: Part
    num_workers: int
    kind: RewardKind
    abstain_share: float = 0.0
    """Share of the problems on which this part has no opinion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardCosts:
    seed: int
    num_workers: int
    """Responses that functions score at the same time."""
    kinds: tuple[RewardKind, ...] = (RewardKind(),)
    """Kinds of prompts that functions score."""
    never_solved: float = 0.0
    """Share of the prompts whose responses all score 0."""
    always_solved: float = 0.0
    report_s: float = 0.0
    """Seconds between two reports of scores; 0: report each at once."""
    programs: ProgramCosts | None = None
    """Costs of prompts whose responses are programs that test cases run."""
    judge: JudgeCosts | None = None
    """Costs of prompts whose responses a judge scores."""
    fitted: tuple[FittedPart, ...] = ()
    """Parts of a recorded run, in place of all of the above."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that scores have."""
        if self.fitted:
            return tuple(each.part for each in self.fitted)
        has = {
            Part.FUNCTION: bool(self.kinds),
            Part.TESTS: self.programs is not None,
            Part.JUDGE: self.judge is not None,
        }
        return tuple(part for part, is_there in has.items() if is_there)

    def pools(self, told_from_s: Callable[[float], float], most_s: float) -> Iterator[tuple[Part, int, Scoring]]:
        """Yield the parts that have a queue and workers, with their number and how each scores a response."""
        if self.fitted:
            yield from ((each.part, each.num_workers, self._fitted(each)) for each in self.fitted)
            return
        if self.kinds:
            yield Part.FUNCTION, self.num_workers, self._by_function
        if (programs := self.programs) is not None:

            def run(response: ResponseId, limits: CaseLimits | None) -> Scored:
                is_correct = self.is_solved(response)
                return programs.run(self.seed, response, is_correct, limits or CaseLimits(most_s), told_from_s)

            yield Part.TESTS, programs.num_workers, run

    def applies(self, part: Part, group: GroupId) -> bool:
        """Whether this part has an opinion on the responses of a group."""
        for each in self.fitted:
            if each.part is part:
                [position] = of_prompt(1, self.seed, "abstains", part.value, group.source, group.prompt)
                return position >= each.abstain_share
        return self._kind(group)[0] is part

    def is_solved(self, response: ResponseId) -> bool:
        group = response.group
        _, difficulty = of_prompt(2, self.seed, "task", group.source, group.prompt)
        return self._draws(response)[2] < self._solve_rate(difficulty)

    def _by_function(self, response: ResponseId, limits: CaseLimits | None = None) -> Scored:
        _, kind = self._kind(response.group)
        assert kind is not None, f"no function scores {response}"
        return self._timed(kind, response)

    def _fitted(self, part: FittedPart) -> Scoring:
        return lambda response, limits: self._timed(part.kind, response)

    def _timed(self, kind: RewardKind, response: ResponseId) -> Scored:
        chance, duration, _ = self._draws(response)
        seconds = kind.seconds(chance, duration)
        if chance < kind.timeout_share or seconds >= kind.timeout_s:
            return Scored(response=response, outcome=Outcome.TIMEOUT, score=0.0, seconds=kind.timeout_s)
        return Scored(response=response, outcome=Outcome.OK, score=float(self.is_solved(response)), seconds=seconds)

    def _draws(self, response: ResponseId) -> list[float]:
        return uniforms(3, self.seed, "reward", *response.group, response.member, response.attempt)

    def _kind(self, group: GroupId) -> tuple[Part, RewardKind | None]:
        """Return the part that scores a prompt, and its kind if that is a function."""
        position, _ = of_prompt(2, self.seed, "task", group.source, group.prompt)
        kinds: list[tuple[Part, RewardKind | None, float]] = [(Part.FUNCTION, kind, kind.share) for kind in self.kinds]
        if self.programs is not None:
            kinds.append((Part.TESTS, None, self.programs.share))
        if self.judge is not None:
            kinds.append((Part.JUDGE, None, self.judge.share))
        position *= sum(share for *_, share in kinds)
        for part, kind, share in kinds:
            position -= share
            if position < 0:
                return part, kind
        return kinds[-1][:2]

    def _solve_rate(self, position: float) -> float:
        if position < self.never_solved:
            return 0.0
        if position >= 1.0 - self.always_solved:
            return 1.0
        return (position - self.never_solved) / (1.0 - self.never_solved - self.always_solved)
