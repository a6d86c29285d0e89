"""The pool with real processes and reward functions that misbehave in every way we can think of."""

from __future__ import annotations

import asyncio
import os
import signal
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tailrace.config.reward_settings import RewardSettings
from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.outcomes import Outcome
from tailrace.rewards.score_task import ScoreResult, ScoreTask
from tailrace.runtime.launchers.process import ProcessLauncher
from tailrace.runtime.rewards.reward_pool import RewardPool

TOTAL_WAIT_S = 240.0
FUNCTIONS = """
    import asyncio, os, subprocess, sys, threading, time
    from pathlib import Path

    def obey(response):
        return eval(response)

    def sleep_for_ever():
        time.sleep(1000)

    def hold_the_interpreter():
        import re
        return re.match("(a+)+$", "a" * 60 + "b")

    def eat_memory():
        hoard = []
        while True:
            hoard.append(bytearray(10_000_000))

    def eat_memory_for_good():
        sys.hoard = []
        while True:
            sys.hoard.append(bytearray(10_000_000))

    def raise_error():
        raise RuntimeError("no such theorem")

    def print_much():
        for _ in range(20_000):
            print("x" * 100)
        return 0.25

    def start_beside(path, **options):
        Path(path).write_text(str(subprocess.Popen(["sleep", "1000"], **options).pid))
        return 0.5

    def sleep_beside(path):
        program = subprocess.Popen(["sleep", "1000" if not Path(path).exists() else "0"])
        with Path(path).open("a") as file:
            file.write(f"{os.getpid()} {program.pid}\\n")
        return 1.0 if program.wait() == 0 else 0.0

    async def obey_later(response):
        await asyncio.sleep(0.001)
        return eval(response)
"""


def name(number: int) -> ResponseId:
    return ResponseId(GroupId("train", 0, number), 0)


def task(number: int, response: str) -> ScoreTask:
    return ScoreTask(response_id=name(number), row={"prompt": "p", "answer": "7"}, response=response)


class Results:
    def __init__(self) -> None:
        self.all: list[ScoreResult] = []
        self._changed = asyncio.Event()

    def add(self, result: ScoreResult) -> None:
        self.all.append(result)
        self._changed.set()

    async def first(self, count: int) -> list[ScoreResult]:
        async with asyncio.timeout(TOTAL_WAIT_S):
            while len(self.all) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.all[:count]


@asynccontextmanager
async def pool(
    directory: Path, function: str = "obey", **settings: object
) -> AsyncIterator[tuple[RewardPool, Results]]:
    file = directory / "functions.py"
    file.write_text(textwrap.dedent(FUNCTIONS))
    results = Results()
    values = {"functions": (f"{file}:{function}",), "timeout_s": 20.0, **settings}
    the_pool = RewardPool(
        RewardSettings.model_validate(values), launch=ProcessLauncher(directory / "logs"), on_result=results.add
    )
    await the_pool.start()
    try:
        yield the_pool, results
    finally:
        await the_pool.stop()


def scores(directory: Path, *responses: str, function: str = "obey", **settings: object) -> list[ScoreResult]:
    """Results of the responses, in order of submission."""

    async def scenario() -> list[ScoreResult]:
        async with pool(directory, function, **settings) as (the_pool, results):
            for number, response in enumerate(responses):
                the_pool.submit(task(number, response))
            found = {result.response_id: result for result in await results.first(len(responses))}
            assert the_pool.status().num_queued == 0
            return [found[name(number)] for number in range(len(responses))]

    return asyncio.run(scenario())


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def until(condition) -> None:
    async with asyncio.timeout(TOTAL_WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


def test_good_responses_are_scored(tmp_path: Path) -> None:
    results = scores(tmp_path, *(str(number / 4) for number in range(20)), workers=2)
    assert [result.score for result in results] == [number / 4 for number in range(20)]
    assert {result.outcome for result in results} == {Outcome.OK}
    assert all(result.seconds >= 0 and result.detail == "" for result in results)


def test_asynchronous_functions_are_scored(tmp_path: Path) -> None:
    assert [r.score for r in scores(tmp_path, "0.5", "1", function="obey_later")] == [0.5, 1.0]


@pytest.mark.parametrize("body", ["sleep_for_ever()", "hold_the_interpreter()"])
def test_a_timeout_is_an_outcome_not_a_hang(tmp_path: Path, body: str) -> None:
    first, second = scores(tmp_path, body, "1", timeout_s=0.5)
    assert (first.outcome, first.score) == (Outcome.TIMEOUT, 0.0)
    assert first.detail == "no score within 0.5 s, so reward-0 was killed"
    assert (second.outcome, second.score) == (Outcome.OK, 1.0)


def test_a_function_that_exits_the_interpreter_is_a_crash(tmp_path: Path) -> None:
    first, second = scores(tmp_path, "os._exit(3)", "1")
    assert first.outcome is Outcome.CRASH
    assert "exited with code 3" in first.detail
    assert second.outcome is Outcome.OK


def test_sys_exit_is_an_error_like_any_exception(tmp_path: Path) -> None:
    first, second, third = scores(tmp_path, "sys.exit(1)", "raise_error()", "1")
    assert (first.outcome, second.outcome, third.outcome) == (Outcome.ERROR, Outcome.ERROR, Outcome.OK)
    assert "SystemExit" in first.detail
    assert "RuntimeError: no such theorem" in second.detail
    assert "functions.py, line" in second.detail


@pytest.mark.parametrize("body", ["eat_memory()", "eat_memory_for_good()"])
def test_a_function_that_eats_memory_meets_its_limit_and_the_next_response_is_scored(tmp_path: Path, body: str) -> None:
    first, second, third = scores(tmp_path, body, "1", "len(bytearray(200_000_000))", memory_mb=300)
    assert first.outcome in (Outcome.ERROR, Outcome.CRASH)
    assert (second.outcome, second.score) == (Outcome.OK, 1.0)
    assert third.score == 200_000_000


def test_results_that_are_no_finite_number_are_invalid(tmp_path: Path) -> None:
    results = scores(tmp_path, "float('nan')", "'high'", "None", "{'acc': 1}", "{'score': 2, 'acc': 0.5, 'note': 'x'}")
    assert [result.outcome for result in results] == [Outcome.INVALID] * 4 + [Outcome.OK]
    assert (results[4].score, results[4].extras) == (2.0, {"acc": 0.5})
    assert "'high' (str)" in results[1].detail


def test_a_function_that_prints_much_is_scored_and_its_output_is_in_the_log(tmp_path: Path) -> None:
    (result,) = scores(tmp_path, "print_much()")
    assert result.score == 0.25
    assert (tmp_path / "logs" / "reward-0.log").stat().st_size > 2_000_000


@pytest.mark.parametrize("options", ["", ", start_new_session=True"])
@pytest.mark.parametrize("then", ["and sleep_for_ever()", ""])
def test_what_a_function_started_dies_at_a_timeout_and_at_the_end(tmp_path: Path, options: str, then: str) -> None:
    response = f"start_beside({str(tmp_path / 'pid')!r}{options}) {then}"
    (result,) = scores(tmp_path, response, timeout_s=1.0 if then else 20.0)
    assert result.outcome is (Outcome.TIMEOUT if then else Outcome.OK)
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_a_aborted_response_is_answered_at_once_and_makes_room(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pool(tmp_path) as (the_pool, results):
            the_pool.submit(task(1, f"Path({str(tmp_path / 'begun')!r}).touch() or sleep_for_ever()"))
            the_pool.submit(task(2, "2"))
            the_pool.submit(task(3, "3"))
            await until((tmp_path / "begun").exists)
            await until(lambda: any(score.limit_s for score in the_pool.status().running))  # the news of its start
            running = the_pool.status()
            assert [score.response_id for score in running.running] == [name(1)]
            assert (running.running[0].worker, running.running[0].limit_s) == ("reward-0", 20.0)
            assert running.num_queued == 2
            the_pool.abort([name(1), name(2)])
            first, second, third = await results.first(3)
            assert {first.response_id, second.response_id} == {name(1), name(2)}
            assert first.outcome is second.outcome is Outcome.ABORTED
            assert (third.response_id, third.outcome) == (name(3), Outcome.OK)
            assert the_pool.status().num_restarts == 1
            assert the_pool.status().running == ()

    asyncio.run(scenario())


def test_a_quick_reward_that_is_aborted_keeps_its_process(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pool(tmp_path) as (the_pool, results):
            the_pool.submit(task(1, f"Path({str(tmp_path / 'begun')!r}).touch() or time.sleep(0.2)"))
            the_pool.submit(task(2, "2"))
            await until((tmp_path / "begun").exists)
            the_pool.abort([name(1)])
            assert [r.outcome for r in await results.first(2)] == [Outcome.ABORTED, Outcome.OK]
            assert the_pool.status().num_restarts == 0

    asyncio.run(scenario())


def test_a_slow_response_does_not_delay_those_of_other_processes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pool(tmp_path, workers=2) as (the_pool, results):
            the_pool.submit(task(0, "sleep_for_ever()"))
            for number in range(1, 9):
                the_pool.submit(task(number, "1"))
            assert {result.response_id for result in await results.first(8)} == {name(n) for n in range(1, 9)}

    asyncio.run(scenario())


def test_a_process_killed_between_two_responses_costs_neither(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pool(tmp_path) as (the_pool, results):
            the_pool.submit(task(1, "os.getpid()"))
            pid = int((await results.first(1))[0].score)
            os.kill(pid, signal.SIGKILL)
            the_pool.submit(task(2, "2"))
            assert (await results.first(2))[1].score == 2.0

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("missing", "'missing' does not exist"),
        ("start_beside", "wants 'path'"),
    ],
)
def test_a_function_that_cannot_be_used_fails_the_start_with_one_sentence(
    tmp_path: Path, function: str, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        scores(tmp_path, "1", function=function, workers=2)
    assert "\n" not in str(caught.value)


def test_a_module_that_dies_while_it_is_loaded_fails_the_start(tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text("import os\nos._exit(9)\n")

    async def scenario() -> None:
        settings = RewardSettings(functions=(f"{tmp_path / 'deadly.py'}:f",))
        the_pool = RewardPool(settings, launch=ProcessLauncher(tmp_path / "logs"), on_result=print)
        await the_pool.start()

    with pytest.raises(ValueError, match=r"exited with code 9 .while it was loading"):
        asyncio.run(scenario())


def test_a_module_that_takes_too_long_to_load_fails_the_start(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(1000)\n")

    async def scenario() -> None:
        settings = RewardSettings(functions=(f"{tmp_path / 'slow.py'}:f",))
        the_pool = RewardPool(settings, launch=ProcessLauncher(tmp_path / "logs"), on_result=print, start_limit_s=0.3)
        await the_pool.start()

    with pytest.raises(ValueError, match=r"did not load the reward functions within 0\.3 s"):
        asyncio.run(scenario())


def test_where_no_process_can_be_started_any_more_responses_crash_instead_of_waiting(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pool(tmp_path) as (the_pool, results):
            (tmp_path / "functions.py").write_text("raise ImportError('the disk went away')")
            the_pool.submit(task(1, "os._exit(1)"))
            the_pool.submit(task(2, "1"))
            first, second = await results.first(2)
            assert (first.outcome, second.outcome) == (Outcome.CRASH, Outcome.CRASH)
            assert "the disk went away" in second.detail
            the_pool.submit(task(3, "1"))
            assert (await results.first(3))[2].outcome is Outcome.CRASH

    asyncio.run(scenario())


def test_a_program_that_a_signal_to_all_processes_ends_does_not_change_the_score(tmp_path: Path) -> None:
    """The process that waited for it gives the response back, and a fresh one scores it, and those behind it."""
    told = tmp_path / "told"

    async def scenario() -> None:
        async with pool(tmp_path, workers=1) as (the_pool, results):
            the_pool.submit(task(0, f"sleep_beside({str(told)!r})"))
            the_pool.submit(task(1, "0.5"))
            await until(lambda: told.exists() and told.read_text().endswith("\n"))
            for pid in told.read_text().split():
                os.kill(int(pid), signal.SIGTERM)
            found = {result.response_id: (result.outcome, result.score) for result in await results.first(2)}
            assert found == {name(0): (Outcome.OK, 1.0), name(1): (Outcome.OK, 0.5)}
            assert the_pool.status().num_restarts == 1

    asyncio.run(scenario())


def test_a_process_that_gets_a_signal_to_stop_between_two_responses_scores_none_after_it(tmp_path: Path) -> None:
    """A program that it keeps for all responses may be gone."""

    async def scenario() -> None:
        async with pool(tmp_path, workers=1) as (the_pool, results):
            the_pool.submit(task(0, "os.getpid()"))
            [first] = await results.first(1)
            os.kill(int(first.score), signal.SIGTERM)
            the_pool.submit(task(1, "os.getpid()"))
            second = (await results.first(2))[1]
            assert second.outcome is Outcome.OK
            assert second.score != first.score

    asyncio.run(scenario())
