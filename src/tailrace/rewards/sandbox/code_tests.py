"""The reward `code_tests`: the program of a response, run against the test cases of its row.

The score is 1 if every case passed, or the fraction that did. A program that is wrong, too slow or killed scores 0 and
the outcome of the reward is `ok`; `verdict/NAME` says which verdict it got. A row without test cases is an error. The
columns `program_prefix` and `program_suffix` are put before and after what the response holds.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tailrace.core.commands import CaseLimits
from tailrace.core.schedule import CaseTime
from tailrace.rewards.sandbox.cases import Case, ProgramLimits, ProgramResult, SandboxError, Verdict
from tailrace.rewards.sandbox.columns import cases_in
from tailrace.rewards.sandbox.program_text import program_in
from tailrace.rewards.sandbox.sandbox import Mode, Sandbox
from tailrace.rewards.score_task import TIMES, ProgramTimes, TimedReward

_SPARE_S = 10.0
"""Seconds that a response has beside those of its cases: sandboxes start, and answers are compared."""


def load_code_tests(
    *,
    mode: str = "strong",
    score: str = "all",
    case_timeout_s: float = 6.0,
    memory_mb: int = 1024,
    max_cases: int | None = None,
    float_tolerance: float = 0.0,
    output_kb: int = 4096,
    tmp_mb: int = 64,
    processes: int = 16,
    total_s: float = math.inf,
    rules: CaseTime | None = None,
) -> CodeTests:
    """Make the reward; `ValueError` if programs cannot be run in this mode here. `total_s`: the most seconds that all
    cases of a response may take together. `rules`: of adaptive limits; tell the times that can change one."""
    limits = ProgramLimits(
        case_s=case_timeout_s, memory_mb=memory_mb, output_kb=output_kb, tmp_mb=tmp_mb, processes=processes
    )
    try:
        sandbox = Sandbox.open(mode=Mode(mode), limits=limits)
        try:
            sandbox.try_out()
        except BaseException:
            sandbox.close()
            raise
    except SandboxError as error:
        raise ValueError(f"the reward 'code_tests' cannot run programs: {error}") from error
    if sandbox.note:
        print(f"code_tests: {sandbox.note}", flush=True)

    return CodeTests(
        sandbox,
        score=score,
        case_timeout_s=case_timeout_s,
        max_cases=max_cases,
        tolerance=float_tolerance,
        total_s=total_s,
        rules=rules,
    )


class CodeTests(TimedReward):
    """Owns the sandbox."""

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        score: str,
        case_timeout_s: float,
        max_cases: int | None,
        tolerance: float,
        total_s: float,
        rules: CaseTime | None,
    ) -> None:
        self._sandbox, self._score, self._tolerance = sandbox, score, tolerance
        self._case_timeout_s, self._max_cases = case_timeout_s, max_cases
        self._total_s, self._rules = total_s, rules
        weakref.finalize(self, sandbox.close)

    def prepare(
        self, response: str, case_limits: CaseLimits | None = None, **columns: Any
    ) -> tuple[float, Callable[[], object]]:
        """A response has as long as its cases together, or `total_s` if that is less."""
        cases = cases_in(columns)[: self._max_cases]
        limits_s = [self._case_timeout_s] * len(cases) if case_limits is None else seconds_of(case_limits, len(cases))
        parts = (columns.get("program_prefix") or "", program_in(response), columns.get("program_suffix") or "")
        total_s = min(sum(limits_s), self._total_s)
        return total_s + _SPARE_S, partial(self._run, "".join(map(str, parts)), cases, limits_s, total_s)

    def _run(self, program: str, cases: Sequence[Case], limits_s: Sequence[float], total_s: float) -> object:
        """The score of a program, its verdict, and how long its cases took."""
        result = self._sandbox.run(
            program,
            cases,
            limits_s,
            stop_at_first_failure=self._score == "all",
            tolerance=self._tolerance,
            total_s=total_s,
        )
        return score_of(result, self._score) | {TIMES: times_of(result, limits_s, self._rules)}


def seconds_of(limits: CaseLimits, num_cases: int) -> list[float]:
    """The limit of each case."""
    named = dict(limits.cases)
    return [named.get(case, limits.others_s) for case in range(num_cases)]


def times_of(result: ProgramResult, limits_s: Sequence[float], rules: CaseTime | None) -> ProgramTimes:
    """What the times of a program say about limits. A case that was cut before its own limit, because the time of all
    cases together was over, says nothing."""
    is_correct = result.num_passed == result.num_cases
    ran = list(enumerate(zip(result.cases, limits_s, strict=False)))
    slow = (
        (case, round(ended.seconds, 3))
        for case, (ended, limit_s) in ran
        if is_correct and rules is not None and ended.seconds > rules.told_from_s(limit_s)
    )
    cut = (
        (case, limit_s)
        for case, (ended, limit_s) in ran
        if ended.verdict is Verdict.TIME and ended.seconds >= 0.99 * limit_s
    )
    return ProgramTimes(is_correct=is_correct, slow=tuple(slow), cut=tuple(cut))


def score_of(result: ProgramResult, score: str) -> dict[str, object]:
    fraction = result.num_passed / result.num_cases
    verdicts: dict[str, object] = {f"verdict/{verdict}": float(result.verdict is verdict) for verdict in Verdict}
    return {"score": fraction if score == "fraction" else float(fraction == 1.0), **verdicts}


def code_tests_options(settings: Any) -> Mapping[str, object]:
    """The options of `load_code_tests` that settings ask for."""
    elsewhere = {"timeouts", "min_case_timeout_s", "timeout_factor", "timeout_probe_share", "timeout_s", "workers"}
    rules = None
    if settings.timeouts == "adaptive":
        most_s = settings.case_timeout_s
        least_s = min(settings.min_case_timeout_s, most_s)
        rules = CaseTime(most_s=most_s, least_s=least_s, factor=settings.timeout_factor)
    return {**settings.model_dump(exclude=elsewhere), "total_s": settings.timeout_s, "rules": rules}
