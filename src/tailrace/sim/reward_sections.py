"""The sections of a scenario file about rewards: functions, test cases and judges, each with workers and costs of its
own."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from tailrace.core.schedule import CaseTime
from tailrace.sim.judge_model import JudgeCosts
from tailrace.sim.program_model import ProgramCosts
from tailrace.sim.reward_model import RewardCosts, RewardKind
from tailrace.sim.section import ScenarioSection, Share, Sourced


class RewardKindSection(ScenarioSection):
    """How long the rewards of one kind of prompt take."""

    share: PositiveFloat = 1.0
    """Share of the prompts that are of this kind, relative to the shares of the other kinds."""
    median_s: NonNegativeFloat = 0.0
    """Median of the seconds of a reward, which have a lognormal distribution."""
    spread: NonNegativeFloat = 0.0
    """Standard deviation of the logarithm of the seconds."""
    timeout_share: float = Share
    """Share of the responses whose reward reaches the time limit."""
    timeout_s: PositiveFloat = 30.0
    """Time limit of a reward in seconds."""


class TestsSection(Sourced):
    """Prompts whose responses are programs, and how long test cases take (``sim/program_model.py``). The names of
    settings that a run has too are those of ``reward.code_tests``."""

    share: PositiveFloat = 1.0
    """Share of the prompts that are of this kind, relative to the shares of the other kinds."""
    workers: PositiveInt
    """Programs that run at the same time."""
    timeouts: Literal["fixed", "adaptive"] = "fixed"
    """``fixed``: every case has ``case_timeout_s``. ``adaptive``: limits follow from correct responses."""
    case_timeout_s: PositiveFloat = 6.0
    """Longest limit of a case in seconds."""
    min_case_timeout_s: PositiveFloat = 2.0
    """Shortest limit of a case with adaptive timeouts."""
    timeout_factor: float = Field(default=1.5, ge=1)
    """With adaptive timeouts, how many times as long as the slowest correct response a case may take."""
    timeout_probe_share: float = Field(default=0.02, ge=0, le=1)
    """With adaptive timeouts, the share of responses that have ``case_timeout_s``."""
    timeout_s: PositiveFloat | None = None
    """Most seconds that all cases of a response may take together; None: no limit."""
    num_cases: PositiveInt = 8
    """Test cases of a problem."""
    median_s: PositiveFloat
    """Median over problems of the seconds of a case."""
    between: NonNegativeFloat = 0.0
    """Standard deviation, between problems, of the logarithm of the seconds of a case."""
    across: NonNegativeFloat = 0.0
    """The same between the cases of a problem."""
    within: NonNegativeFloat = 0.0
    """Largest deviation of a response from its problem, in the logarithm of the seconds. The times of two correct
    responses differ by less than the factor exp(2 within)."""
    endless_share: float = Share
    """Share of the responses whose program never ends in one of its cases."""
    early_share: float = Field(default=0.5, ge=0, le=1)
    """Share of the wrong programs that fail in the first case. The others fail in the last."""
    start_s: NonNegativeFloat = 0.0
    """Seconds that a program needs beside those of its cases."""

    def costs(self) -> ProgramCosts:
        names = ("share", "num_cases", "median_s", "between", "across", "within")
        more = ("endless_share", "early_share", "start_s")
        chosen = {name: getattr(self, name) for name in (*names, *more)}
        total_s = math.inf if self.timeout_s is None else self.timeout_s
        return ProgramCosts(num_workers=self.workers, total_s=total_s, **chosen)

    def case_time(self) -> CaseTime:
        """Return the time limits of test cases, as the schedule holds them."""
        return CaseTime(
            strategy=self.timeouts,
            most_s=self.case_timeout_s,
            least_s=min(self.min_case_timeout_s, self.case_timeout_s),
            factor=self.timeout_factor,
            probe_share=self.timeout_probe_share,
        )


class JudgeSection(Sourced):
    """Prompts whose responses a judge scores, and what its passes cost (``sim/judge_model.py``)."""

    share: PositiveFloat = 1.0
    """Share of the prompts that are of this kind, relative to the shares of the other kinds."""
    placement: Literal["shared", "own"] = "shared"
    """``shared``: judges compute on the devices of rollout. ``own``: they have ``devices`` for themselves, which are
    taken from rollout and training."""
    workers: PositiveInt
    """Judges with placement ``shared``."""
    devices: PositiveInt = 1
    """Devices with placement ``own``, each with a judge."""
    takes_from_training: bool = True
    """Whether training, too, has fewer devices with placement ``own``."""
    pass_s: NonNegativeFloat = 0.0
    """Fixed seconds of a pass."""
    response_s: NonNegativeFloat = 0.0
    """Seconds per response of a pass."""
    token_s: NonNegativeFloat = 0.0
    """Seconds per token that a judge reads."""
    copy_s: NonNegativeFloat = 0.0
    """With placement ``shared``, the least seconds of a pass: layers come from host memory while others compute."""
    kv_tokens: NonNegativeInt = 0
    """With placement ``shared``, tokens for which an instance has no memory, because the judge has it."""
    template_tokens: NonNegativeInt = 0
    """Tokens that the judge reads beside prompt and response."""
    max_pass_tokens: PositiveInt = 65536
    """Most tokens of a pass, unless a single response has more."""
    rollout_slowdown: float = Field(default=1.0, ge=1)
    """With placement ``shared``, the factor by which rollout takes longer while all judges compute."""
    slowdown: float = Field(default=1.0, ge=1)
    """With placement ``shared``, the factor by which a pass takes longer while all instances generate."""

    @property
    def is_apart(self) -> bool:
        return self.placement == "own"

    def costs(self) -> JudgeCosts:
        names = ("share", "pass_s", "response_s", "token_s", "template_tokens", "max_pass_tokens")
        chosen = {name: getattr(self, name) for name in names}
        if self.is_apart:
            return JudgeCosts(num_judges=self.devices, **chosen)
        both = {name: getattr(self, name) for name in ("copy_s", "rollout_slowdown", "slowdown")}
        return JudgeCosts(num_judges=self.workers, **chosen, **both)


class RewardSection(Sourced):
    """The reward workers and the scores. Each prompt is of one kind: a function scores it, test cases, or a judge."""

    num_workers: PositiveInt
    """Responses that functions score at the same time."""
    kinds: tuple[RewardKindSection, ...] = (RewardKindSection(),)
    """Kinds of prompts that functions score, by how long their rewards take."""
    code_tests: TestsSection | None = None
    """Prompts whose responses are programs; None: there are none."""
    judge: JudgeSection | None = None
    """Prompts whose responses a judge scores; None: there are none."""
    never_solved: float = Share
    """Share of the prompts whose responses all score 0."""
    always_solved: float = Share
    """Share of the prompts whose responses all score 1."""
    report_s: NonNegativeFloat = 0.0
    """Seconds between two reports of scores by functions or test cases; 0: report each at once."""

    @model_validator(mode="after")
    def _has_kinds(self) -> Self:
        if not self.kinds and self.code_tests is None and self.judge is None:
            raise ValueError("no prompt has a reward: give kinds, code_tests or judge")
        return self

    def costs(self, seed: int) -> RewardCosts:
        return RewardCosts(
            seed=seed,
            num_workers=self.num_workers,
            kinds=tuple(RewardKind(**kind.model_dump()) for kind in self.kinds),
            never_solved=self.never_solved,
            always_solved=self.always_solved,
            report_s=self.report_s,
            programs=None if self.code_tests is None else self.code_tests.costs(),
            judge=None if self.judge is None else self.judge.costs(),
        )

    def scaled(self, factor: int) -> RewardSection:
        """Return the section with ``factor`` times the workers and devices of every part."""
        tests, judge = self.code_tests, self.judge
        if tests is not None:
            tests = tests.model_copy(update={"workers": factor * tests.workers})
        if judge is not None:
            counts = {"workers": factor * judge.workers, "devices": factor * judge.devices}
            judge = judge.model_copy(update=counts)
        update = {"num_workers": factor * self.num_workers, "code_tests": tests, "judge": judge}
        return self.model_copy(update=update)
