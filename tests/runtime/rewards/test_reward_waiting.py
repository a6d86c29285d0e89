"""Responses that wait inside a reward process, behind one that is slow or ends the process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from runtime.rewards.test_reward_pool import Results, name, pool, task, until
from tailrace.core.outcomes import Outcome
from tailrace.runtime.rewards.reward_pool import RewardPool

DEATHS = ["os._exit(3)", "os.kill(os.getpid(), 9)", "time.sleep(0.5) or os.kill(os.getpid(), 9)"]
DEATHS_AFTER_THE_ANSWER = {
    "out of memory": "time.sleep({delay}) or eat_memory()",
    "killed": "time.sleep({delay}) or threading.Timer(0.02, os.kill, (os.getpid(), 9)).start() or 1",
}


async def warm(the_pool: RewardPool, results: Results, *, workers: int) -> None:
    """Have every process score a quick response, so that it is given some ahead afterwards."""
    for number in range(100, 100 + workers):
        the_pool.submit(task(number, "1"))
    await results.first(workers)
    results.all.clear()


async def outcomes(results: Results, count: int) -> list[Outcome]:
    found = {result.response_id: result.outcome for result in await results.first(count)}
    return [found[name(number)] for number in range(count)]


def noted(calls: Path, number: int, then: str) -> str:
    """A response that adds its number to a file whenever it is scored."""
    return f"Path({str(calls)!r}).open('a').write('{number} ') and ({then})"


def numbers(calls: Path) -> list[int]:
    return sorted(map(int, calls.read_text().split()))


def test_quick_scores_are_given_ahead_and_a_slow_one_delays_only_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pool(tmp_path, workers=2) as (the_pool, results):
            await warm(the_pool, results, workers=2)
            the_pool.submit(task(0, "sleep_for_ever()"))
            for number in range(1, 9):
                the_pool.submit(task(number, "1"))
            assert the_pool.status().num_queued == 0
            assert {result.response_id for result in await results.first(8)} == {name(n) for n in range(1, 9)}
            assert the_pool.status().num_restarts == 0

    asyncio.run(scenario())


def test_a_response_given_to_another_process_is_not_scored_behind_the_slow_one_too(tmp_path: Path) -> None:
    calls, end = tmp_path / "calls", tmp_path / "end"

    async def scenario() -> None:
        async with pool(tmp_path, workers=2) as (the_pool, results):
            await warm(the_pool, results, workers=2)
            until_end = f"[time.sleep(0.01) for _ in iter(Path({str(end)!r}).exists, True)] and 1"
            the_pool.submit(task(0, noted(calls, 0, until_end)))
            for number in range(1, 9):
                the_pool.submit(task(number, noted(calls, number, "time.sleep(0.01) or 1")))
            assert the_pool.status().num_queued == 0
            await results.first(8)
            end.touch()
            assert (await results.first(9))[8].response_id == name(0)
            the_pool.submit(task(9, noted(calls, 9, "1")))
            the_pool.submit(task(10, noted(calls, 10, "1")))
            await results.first(11)
            await until(lambda: not the_pool.status().running)
            assert the_pool.status().num_restarts == 0

    asyncio.run(scenario())
    assert numbers(calls) == list(range(11))


def test_a_response_that_waits_inside_a_process_can_be_aborted_and_is_not_scored(tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    async def scenario() -> None:
        async with pool(tmp_path, workers=1) as (the_pool, results):
            await warm(the_pool, results, workers=1)
            for number in range(4):
                the_pool.submit(task(number, noted(calls, number, "time.sleep(0.01) or 1")))
            assert the_pool.status().num_queued == 0
            the_pool.abort([name(3)])
            the_pool.abort([name(3)])
            found = [(result.response_id, result.outcome) for result in await results.first(4)]
            assert found[0] == (name(3), Outcome.ABORTED)
            assert found[1:] == [(name(number), Outcome.OK) for number in range(3)]
            await until(lambda: not the_pool.status().running)
            assert the_pool.status().num_restarts == 0
            assert len(results.all) == 4

    asyncio.run(scenario())
    assert numbers(calls) == [0, 1, 2]


@pytest.mark.parametrize("death", DEATHS)
def test_a_crash_costs_only_the_response_that_was_being_scored(tmp_path: Path, death: str) -> None:
    async def scenario() -> None:
        async with pool(tmp_path, workers=1) as (the_pool, results):
            await warm(the_pool, results, workers=1)
            for number, response in enumerate(["1", death, "1", death, death, "1", "1"]):
                the_pool.submit(task(number, response))
            assert the_pool.status().num_queued == 0
            crash, ok = Outcome.CRASH, Outcome.OK
            assert await outcomes(results, 7) == [ok, crash, ok, crash, crash, ok, ok]

    asyncio.run(scenario())


@pytest.mark.parametrize("death", DEATHS_AFTER_THE_ANSWER.values(), ids=DEATHS_AFTER_THE_ANSWER)
def test_a_response_that_was_next_when_its_processes_ended_is_not_blamed(tmp_path: Path, death: str) -> None:
    """The last response waits behind each of the others in turn. Their processes end after they have answered."""

    async def scenario() -> None:
        async with pool(tmp_path, workers=3, memory_mb=50) as (the_pool, results):
            await warm(the_pool, results, workers=3)
            for number in range(3):
                the_pool.submit(task(number, death.format(delay=0.05 * number)))
            the_pool.submit(task(3, "1"))
            last = (await outcomes(results, 4))[3]
            assert last is Outcome.OK

    asyncio.run(scenario())
