"""The reward `code_tests`: the program of a response, run against the test cases of its row.

The score is 1 if every case passed, or the fraction that did. A program that is wrong, too slow or killed scores 0 and
the outcome of the reward is `ok`; `verdict/NAME` says which verdict it got. A row without test cases is an error. The
columns `program_prefix` and `program_suffix` are put before and after what the response holds.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tailrace.core.commands import CaseLimits
from tailrace.rewards.sandbox.cases import ProgramLimits, ProgramResult, SandboxError, Verdict
from tailrace.rewards.sandbox.columns import cases_in
from tailrace.rewards.sandbox.program_text import program_in
from tailrace.rewards.sandbox.sandbox import Mode, Sandbox
from tailrace.rewards.score_task import TIMES, ProgramTimes


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
    total_s: float | None = None,
    slow_s: float = math.inf,
) -> Callable[..., object]:
    """Make the reward function; `ValueError` if programs cannot be run in this mode here. `total_s`: seconds that all
    cases of a response may take together. `slow_s`: tell of a correct program the cases that took longer."""
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

    def code_tests(response: str, case_limits: CaseLimits | None = None, **columns: object) -> dict[str, object]:
        """The score of the program in the response, its verdict, and how long its cases took."""
        cases = cases_in(columns)[:max_cases]
        limits_s = [case_timeout_s] * len(cases) if case_limits is None else seconds_of(case_limits, len(cases))
        parts = (columns.get("program_prefix") or "", program_in(response), columns.get("program_suffix") or "")
        result = sandbox.run(
            "".join(map(str, parts)),
            cases,
            limits_s,
            stop_at_first_failure=score == "all",
            tolerance=float_tolerance,
            total_s=total_s,
        )
        return score_of(result, score) | {TIMES: times_of(result, limits_s, slow_s)}

    weakref.finalize(code_tests, sandbox.close)
    return code_tests


def seconds_of(limits: CaseLimits, num_cases: int) -> list[float]:
    """The limit of each case."""
    named = dict(limits.cases)
    return [named.get(case, limits.others_s) for case in range(num_cases)]


def times_of(result: ProgramResult, limits_s: Sequence[float], slow_s: float) -> ProgramTimes:
    """What the times of a program say about limits. A case that was cut before its own limit, because the time of all
    cases together was over, says nothing."""
    is_correct = result.num_passed == result.num_cases
    ran = list(enumerate(zip(result.cases, limits_s, strict=False)))
    slow = ((case, round(ended.seconds, 3)) for case, (ended, _) in ran if is_correct and ended.seconds > slow_s)
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


def code_tests_options(settings: Any, timeout_s: float) -> Mapping[str, object]:
    """The options of `load_code_tests` that settings ask for. The cases together end before the reward's own limit, so
    that a slow program gets a verdict instead of the outcome `timeout`."""
    own = settings.model_dump(exclude={"timeouts", "min_case_timeout_s", "timeout_factor", "timeout_probe_share"})
    is_adaptive = settings.timeouts == "adaptive"
    slow_s = settings.min_case_timeout_s / settings.timeout_factor if is_adaptive else math.inf
    return {**own, "total_s": max(0.8 * timeout_s, timeout_s - 2.0), "slow_s": slow_s}
