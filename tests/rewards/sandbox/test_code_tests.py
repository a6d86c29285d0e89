"""The reward `code_tests`, through the scorer of a reward process: rows of every format, verdicts, options."""

from __future__ import annotations

import sys

import pytest

from rewards.sandbox.players import needs_bubblewrap
from rewards.sandbox.rows import CALL_ROWS, ROWS
from tailrace.config.code_settings import CodeTestsSettings
from tailrace.config.reward_settings import RewardFunctionSettings, RewardSettings
from tailrace.config.settings import Settings
from tailrace.core.commands import CaseLimits
from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.outcomes import Outcome
from tailrace.core.schedule import CaseTime
from tailrace.data.prompts import Prompt, PromptSet
from tailrace.rewards.assignment import RewardAssignment, reward_use
from tailrace.rewards.sandbox.cases import CaseResult, ProgramResult, Verdict
from tailrace.rewards.sandbox.code_tests import code_tests_options, load_code_tests, seconds_of, times_of
from tailrace.rewards.score_task import ProgramTimes, ScoreResult, ScoreTask
from tailrace.rewards.scoring import Scorer

RIGHT = "```python\nprint(sum(map(int, input().split())))\n```"
HALF = "```python\nprint(3)\n```"
RIGHT_CALL = "```python\ndef add(a, b): return a + b\n```"


def score(
    response: str, row: dict[str, object], case_limits: CaseLimits | None = None, **options: object
) -> ScoreResult:
    settings = RewardSettings(code_tests=CodeTestsSettings(**options), timeout_s=60.0)
    use = reward_use(settings, RewardFunctionSettings(function="code_tests"), tuple(row))
    name = ResponseId(GroupId("train", 0, 1), 0)
    with Scorer.load([use]) as scorer:
        return scorer.score(ScoreTask(response_id=name, row=row, response=response, case_limits=case_limits))


@needs_bubblewrap
@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_every_format_is_scored(name: str) -> None:
    row = {"prompt": "Add two numbers.", **ROWS[name]}
    assert score(RIGHT, row).score == 1.0
    assert score(HALF, row).score == 0.0
    assert score(HALF, row, score="fraction").score == 0.5


@needs_bubblewrap
@pytest.mark.parametrize("name", CALL_ROWS)
def test_a_row_of_every_format_that_calls_a_function_is_scored(name: str) -> None:
    row = {"prompt": "Add two numbers.", **CALL_ROWS[name]}
    assert score(RIGHT_CALL, row).score == 1.0
    assert score(RIGHT, row).score == 0.0


THREE = {"tests": [{"input": f"{number}\n", "output": f"{number}\n"} for number in range(3)]}
SLOW_IN_THE_SECOND = "import time\nn = input()\ntime.sleep(1.0 if n == '1' else 0.0)\nprint(n)"


@needs_bubblewrap
def test_a_correct_program_tells_its_slow_cases_where_limits_are_adaptive() -> None:
    # Other cases may be slow too on a busy machine, but this one is slow on any.
    found = score(SLOW_IN_THE_SECOND, THREE, timeouts="adaptive", min_case_timeout_s=0.9, timeout_factor=1.0)
    assert found.case_times is not None
    assert found.case_times.is_correct
    assert dict(found.case_times.slow)[1] >= 1.0
    assert found.case_times.cut == ()
    fixed = score(SLOW_IN_THE_SECOND, THREE)
    assert fixed.case_times == ProgramTimes(is_correct=True)


@needs_bubblewrap
def test_the_limits_of_a_task_hold_and_the_case_that_was_cut_is_told() -> None:
    limits = CaseLimits(60.0, ((1, 0.4),))
    found = score(SLOW_IN_THE_SECOND, THREE, limits, timeouts="adaptive", case_timeout_s=60.0)
    assert (found.outcome, found.score) == (Outcome.OK, 0.0)
    assert found.case_times == ProgramTimes(is_correct=False, cut=((1, 0.4),))


def test_each_case_has_the_limit_that_names_it_or_that_of_the_others() -> None:
    assert seconds_of(CaseLimits(2.0, ((1, 6.0), (7, 9.0))), 3) == [2.0, 6.0, 2.0]


def test_a_case_that_was_cut_because_the_time_of_all_cases_was_over_says_nothing() -> None:
    ended = ProgramResult(cases=(CaseResult(verdict=Verdict.TIME, seconds=1.2),), num_cases=3)
    assert times_of(ended, [6.0, 6.0, 6.0], None) == ProgramTimes(is_correct=False)
    assert times_of(ended, [1.2, 6.0, 6.0], None) == ProgramTimes(is_correct=False, cut=((0, 1.2),))


def test_only_times_that_can_change_a_limit_are_told() -> None:
    """A limit of 6 s follows from an anchor of 4 s; one of 30 s is that of a problem of which nothing is known."""
    rules = CaseTime(most_s=30.0, least_s=3.0, factor=1.5)
    passed = [CaseResult(verdict=Verdict.PASSED, seconds=seconds) for seconds in (1.9, 2.1, 3.9, 4.1, 3.9)]
    ended = ProgramResult(cases=tuple(passed), num_cases=5)
    assert times_of(ended, [3.0, 3.0, 6.0, 6.0, 30.0], rules).slow == ((1, 2.1), (3, 4.1), (4, 3.9))
    assert times_of(ended, [3.0, 3.0, 6.0, 6.0, 30.0], None).slow == ()


@needs_bubblewrap
@pytest.mark.parametrize(
    ("response", "verdict"),
    [(RIGHT, "passed"), (HALF, "wrong"), ("while True: pass", "time"), ("raise ValueError", "crashed")],
)
def test_a_verdict_is_not_an_outcome(response: str, verdict: str) -> None:
    result = score(response, ROWS["verl"], case_timeout_s=60.0 if verdict != "time" else 0.3)
    assert result.outcome is Outcome.OK
    assert {name for name, share in result.extras.items() if share} == {f"verdict/{verdict}"}


@needs_bubblewrap
def test_a_row_without_tests_is_an_error() -> None:
    assert score(RIGHT, {"prompt": "x", "answer": "42"}).outcome is Outcome.ERROR


@needs_bubblewrap
def test_options_change_what_is_run() -> None:
    assert score("print(3)", ROWS["verl"], max_cases=1).score == 1.0
    assert score("print(3.0000001)", ROWS["own"], max_cases=1, float_tolerance=1e-3).score == 1.0
    wrapped = {"tests": [{"input": "", "output": "7"}], "program_prefix": "print(", "program_suffix": ")"}
    assert score("3 + 4", wrapped).score == 1.0


def test_without_bubblewrap_the_reward_is_refused_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    if sys.platform == "linux":
        with pytest.raises(ValueError, match="apt-get install bubblewrap"):
            load_code_tests()


def test_the_options_of_the_reward_are_those_of_the_settings() -> None:
    options = code_tests_options(CodeTestsSettings(timeout_s=50.0, memory_mb=64))
    assert (options["mode"], options["total_s"], options["memory_mb"]) == ("strong", 50.0, 64)
    assert "timeouts" not in options


@needs_bubblewrap
def test_the_limit_of_a_response_follows_from_those_of_its_cases() -> None:
    """A process has a little longer than its cases, so that a slow program gets a verdict and not a timeout."""
    row = {"prompt": "", "tests": [{"input": "1 2", "output": "3"}] * 4}
    tests = load_code_tests(case_timeout_s=6.0, total_s=20.0)

    def limit_s(case_limits: CaseLimits | None) -> float:
        return tests.prepare("", case_limits=case_limits, **row)[0]

    spare_s = limit_s(CaseLimits(1.0)) - 4 * 1.0
    assert 1 <= spare_s <= 30
    assert limit_s(CaseLimits(1.0, ((2, 3.5),))) == 3 * 1.0 + 3.5 + spare_s
    assert limit_s(CaseLimits(9.0)) == 20.0 + spare_s, "all cases together have total_s at most"
    assert limit_s(None) == 20.0 + spare_s, "without limits of its own, each case has case_timeout_s"


@pytest.mark.parametrize(("mode", "is_warned"), [("strong", False), ("weak", True)])
def test_a_run_in_mode_weak_says_what_is_not_stopped(mode: str, is_warned: bool) -> None:
    settings = Settings(reward=RewardSettings(functions=("code_tests",), code_tests=CodeTestsSettings(mode=mode)))
    prompt = Prompt(index=0, row=ROWS["own"], text="", tokens=())
    prompts = PromptSet(name="train", path="", prompts={0: prompt}, columns=(), num_rows=1, num_filtered=0)
    assert ("It uses the network." in RewardAssignment.make(settings, [prompts]).note) is is_warned
