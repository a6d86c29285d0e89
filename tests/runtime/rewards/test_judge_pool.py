"""The pool of judges with real processes that hang, die and are stopped. They have no model: scripted_judge.py."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runtime.rewards.scripted_judge import ENTRY
from tailrace.config.reward_settings import RewardFunctionSettings, RewardSettings
from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.outcomes import Outcome
from tailrace.rewards.score_task import RewardUse, ScoreResult, ScoreTask
from tailrace.runtime.launchers.process import ProcessLauncher
from tailrace.runtime.rewards.judge_pool import JudgePool
from tailrace.runtime.rewards.judge_slot import JudgeLimits
from tailrace.runtime.rewards.reward_pool import RewardPool

WAIT_S = 240.0


def name(number: int) -> ResponseId:
    return ResponseId(GroupId("train", 0, number), 0)


class Stage:
    def __init__(
        self, folder: Path, *, num_judges: int, limits: JudgeLimits, recover: Callable[[], Awaitable[None]] | None
    ) -> None:
        self.folder = folder
        self.results: dict[int, list[ScoreResult]] = {}
        self.said: list[str] = []
        self.pool = JudgePool(
            folder,
            use=RewardUse(function="judge", label="judge", weight=0.5),
            num_judges=num_judges,
            limits=limits,
            launch=ProcessLauncher(folder / "logs"),
            on_result=self._add,
            say=self.said.append,
            recover=recover,
            entry=ENTRY,
        )

    def _add(self, result: ScoreResult) -> None:
        self.results.setdefault(result.response_id.group.prompt, []).append(result)

    def submit(self, **texts: str) -> None:
        """``r3="0.5"``: response 3 is the text 0.5."""
        for key, text in texts.items():
            row = {"prompt": "p"}
            task = ScoreTask(response_id=name(int(key[1:])), row=row, response=text, source="math")
            self.pool.submit(task)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.005)

    async def outcomes(self, *numbers: int) -> list[Outcome]:
        """The outcomes of these responses, each of which has one result."""
        await self.until(lambda: all(number in self.results for number in numbers))
        assert all(len(found) == 1 for found in self.results.values())
        return [self.results[number][0].outcome for number in numbers]

    def story(self) -> list[list[str]]:
        path = self.folder / "story"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def passes(self) -> list[list[int]]:
        """The responses of each pass."""
        return [[int(number) for number in numbers] for _, what, *numbers in self.story() if what == "pass"]

    def pids(self) -> list[int]:
        """Of all judges, in the order of their starts."""
        return [int(pid) for pid, what, *_ in self.story() if what == "start"]

    def open_gate(self, num_messages: int = 0) -> None:
        """Open it to a judge that has read so many messages, from its start on."""
        unseen = self.folder / "gate-in-the-making"
        unseen.write_text(str(num_messages))
        unseen.rename(self.folder / "gate")


@asynccontextmanager
async def stage(
    folder: Path,
    *,
    num_judges: int = 1,
    pass_s: float = 200.0,
    pick_up_s: float = 200.0,
    recover: Callable[[], Awaitable[None]] | None = None,
) -> AsyncIterator[Stage]:
    limits = JudgeLimits(start_s=200.0, pass_s=pass_s, pick_up_s=pick_up_s)
    made = Stage(folder, num_judges=num_judges, limits=limits, recover=recover)
    await made.pool.start()
    try:
        yield made
    finally:
        await made.pool.stop()


def test_scores_are_weighted_and_what_waits_makes_a_pass(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stage(tmp_path) as it:
            it.submit(r1="gate")
            await it.until(lambda: it.passes() == [[1]])
            it.submit(r2="0.25", r3="1")
            status = it.pool.status()
            assert ([each.response_id for each in status.running], status.num_queued) == ([name(1)], 2)
            assert (status.running[0].worker, status.running[0].limit_s) == ("judge-0", 200.0)
            it.open_gate(1 + 2)
            assert await it.outcomes(1, 2, 3) == [Outcome.OK] * 3
            assert it.passes() == [[1], [2, 3]]
            [found] = it.results[2]
            assert found.score == 0.125
            assert found.extras == {"judge/score": 0.25, "judge/answer_mass": 0.5, "source/math": 0.125}
            assert found.queued_s > 0
            assert it.said == []

    asyncio.run(scenario())


def test_a_pass_that_takes_too_long_is_a_timeout_and_what_waited_goes_to_a_new_judge(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stage(tmp_path, pass_s=3.0) as it:
            it.submit(r1="hang")
            await it.until(lambda: it.passes() == [[1]])
            it.submit(r2="0.5", r3="1")
            assert await it.outcomes(1, 2, 3) == [Outcome.TIMEOUT, Outcome.OK, Outcome.OK]
            [found] = it.results[1]
            assert found.detail == "no score within 3 s, so judge-0 was killed"
            assert found.seconds >= 3.0
            assert it.said == [f"judge-0 is lost: {found.detail}; it is started again (its log: logs/judge-0.log)"]
            assert len(it.pids()) == 2
            assert it.pool.status().num_restarts == 1

    asyncio.run(scenario())


def test_a_judge_that_is_killed_in_a_pass_loses_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stage(tmp_path) as it:
            it.submit(r1="gate")
            await it.until(lambda: it.passes() == [[1]])
            it.submit(r2="0.5")
            os.kill(it.pids()[0], signal.SIGKILL)
            await it.until(lambda: len(it.passes()) == 2)
            it.open_gate()
            assert await it.outcomes(1, 2) == [Outcome.OK, Outcome.OK]
            assert it.passes()[1] == [1, 2]
            assert "judge-0 is lost: worker 'judge-0' was killed by SIGKILL; it is started again" in it.said[0]

    asyncio.run(scenario())


@pytest.mark.parametrize("deed", ["kill", "ignore"])
def test_a_response_that_ends_judge_after_judge_is_a_crash_and_harms_no_other(tmp_path: Path, deed: str) -> None:
    async def scenario() -> None:
        async with stage(tmp_path, pick_up_s=3.0) as it:
            it.submit(r0="gate")
            await it.until(lambda: it.passes() == [[0]])
            it.submit(r1="0.5", r2=deed, r3="1")
            it.open_gate(1 + 3)
            assert await it.outcomes(0, 1, 2, 3) == [Outcome.OK, Outcome.OK, Outcome.CRASH, Outcome.OK]
            assert "3 judges ended while they had this response" in it.results[2][0].detail
            if deed == "kill":
                assert it.passes()[1:3] == [[1, 2, 3]] * 2, "from the second time on, each is judged alone"
                assert sorted(it.passes()[3:]) == [[1], [2], [3]]
            assert len(it.pids()) == 4

    asyncio.run(scenario())


def test_nothing_is_judged_beside_a_response_that_was_lost_twice(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stage(tmp_path) as it:
            it.submit(r1="gate")
            for losses in range(2):
                await it.until(lambda losses=losses: len(it.passes()) == losses + 1)
                os.kill(it.pids()[-1], signal.SIGKILL)
            await it.until(lambda: len(it.passes()) == 3)
            it.submit(r2="1", r3="1")
            assert [len(slot.given) for slot in it.pool._slots] == [1]
            it.open_gate()
            assert await it.outcomes(1, 2, 3) == [Outcome.OK] * 3

    asyncio.run(scenario())


def test_a_judge_that_is_stopped_and_begins_no_pass_is_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stage(tmp_path, pick_up_s=3.0) as it:
            os.kill(it.pids()[0], signal.SIGSTOP)
            it.submit(r1="0.5")
            assert await it.outcomes(1) == [Outcome.OK]
            assert "judge-0 did not begin within 3 s, so it was killed" in it.said[0]

    asyncio.run(scenario())


def test_a_judge_that_cannot_start_refuses_the_run(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "refuse").touch()
        async with stage(tmp_path, num_judges=2):
            pass

    with pytest.raises(ValueError, match="the model is gone"):
        asyncio.run(scenario())


def test_where_no_judge_can_be_started_again_every_response_is_a_crash(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stage(tmp_path) as it:
            it.submit(r1="gate")
            await it.until(lambda: it.passes() == [[1]])
            it.submit(r2="1")
            (tmp_path / "refuse").touch()
            os.kill(it.pids()[0], signal.SIGKILL)
            assert await it.outcomes(1, 2) == [Outcome.CRASH, Outcome.CRASH]
            it.submit(r3="1")
            assert await it.outcomes(3) == [Outcome.CRASH]
            assert it.results[3][0].detail == "the model is gone"
            assert len(it.pids()) == 1 + 3
            assert "judge-0 is given up: the model is gone" in it.said[-1]

    asyncio.run(scenario())


def test_judges_that_end_one_after_the_other_without_any_score_are_given_up(tmp_path: Path) -> None:
    """Not one judge for each response: a large model takes long to load."""

    async def scenario() -> None:
        async with stage(tmp_path) as it:
            it.submit(**{f"r{number}": "kill" for number in range(16)})
            assert await it.outcomes(*range(16)) == [Outcome.CRASH] * 16
            assert len(it.pids()) == 6
            assert "6 judges in a row ended without any score" in it.said[-1]

    asyncio.run(scenario())


def test_a_judge_that_is_given_up_leaves_its_work_to_the_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stage(tmp_path, num_judges=2) as it:
            (tmp_path / "refuse").touch()
            os.kill(it.pids()[0], signal.SIGKILL)
            await it.until(lambda: any("is given up" in line for line in it.said))
            it.submit(r1="1", r2="0", r3="1")
            assert await it.outcomes(1, 2, 3) == [Outcome.OK] * 3

    asyncio.run(scenario())


def test_aborted_responses_are_done_with_at_once_and_no_judge_is_killed_for_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stage(tmp_path) as it:
            it.submit(r1="gate")
            await it.until(lambda: it.passes() == [[1]])
            it.submit(r2="1", r3="1")
            it.pool.abort([name(1), name(2), name(9)])
            assert [it.results[number][0].outcome for number in (1, 2)] == [Outcome.ABORTED] * 2
            del it.results[1]
            # Asked for again while its first pass still runs; with the others, the judge has room for it.
            it.submit(r1="0.25", r4="1", r5="1", r6="1")
            it.open_gate(1 + 3)
            assert await it.outcomes(1, 3, 4, 5, 6) == [Outcome.OK] * 5
            assert it.results[1][0].extras["judge/score"] == 0.25
            assert not any(2 in each for each in it.passes())
            assert len(it.pids()) == 1

    asyncio.run(scenario())


def test_judges_share_what_waits(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stage(tmp_path, num_judges=2) as it:
            it.submit(**{f"r{number}": "gate" for number in range(10)})
            await it.until(lambda: len(it.passes()) >= 2)
            status = it.pool.status()
            assert len(status.running) + status.num_queued == 10
            assert all(len(slot.given) == 5 for slot in it.pool._slots)
            it.open_gate()
            assert await it.outcomes(*range(10)) == [Outcome.OK] * 10

    asyncio.run(scenario())


def test_a_judge_that_comes_back_gets_a_share_of_what_waits(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stage(tmp_path, num_judges=2) as it:
            it.submit(r0="gate", r1="gate")
            await it.until(lambda: len(it.passes()) == 2)
            os.kill(it.pids()[0], signal.SIGKILL)
            await it.until(lambda: bool(it.said))
            it.submit(**{f"r{number}": "gate" for number in range(2, 10)})
            assert max(len(slot.given) for slot in it.pool._slots) == 5
            await it.until(lambda: {len(slot.given) for slot in it.pool._slots} == {5})
            it.open_gate()
            assert await it.outcomes(*range(10)) == [Outcome.OK] * 10

    asyncio.run(scenario())


def test_judges_that_are_killed_for_others_lose_nothing_and_start_when_the_gpu_is_free(tmp_path: Path) -> None:
    async def scenario() -> None:
        is_free = asyncio.Event()

        async def recover() -> None:
            await is_free.wait()

        async with stage(tmp_path, recover=recover) as it:
            it.submit(r1="gate", r2="gate")
            await it.until(lambda: sum(map(len, it.passes())) >= 1)
            for killed in range(4):  # more often than a response may be lost, or a start may fail
                it.pool.kill_all()
                await it.until(lambda killed=killed: len(it.said) == killed + 1)
                assert len(it.pids()) == killed + 1, "it was started before the GPU was free"
                is_free.set()
                await it.until(lambda killed=killed: len(it.pids()) == killed + 2)
                is_free.clear()
            is_free.set()
            it.open_gate()
            assert await it.outcomes(1, 2) == [Outcome.OK, Outcome.OK]

    asyncio.run(scenario())


def test_a_slow_judge_holds_up_no_function(tmp_path: Path) -> None:
    """Functions end while the judge waits at the gate, which is opened after them."""

    async def scenario() -> None:
        async with stage(tmp_path) as it:
            scored: list[ScoreResult] = []
            settings = RewardSettings(functions=(RewardFunctionSettings(function="exact_match"),))
            functions = RewardPool(settings, launch=ProcessLauncher(tmp_path / "logs"), on_result=scored.append)
            await functions.start()
            for number in range(4):
                it.submit(**{f"r{number}": "gate"})
                row = {"prompt": "p", "answer": "7"}
                functions.submit(ScoreTask(response_id=name(number), row=row, response="7"))
            await it.until(lambda: len(scored) == 4)
            assert it.results == {}
            it.open_gate()
            assert await it.outcomes(0, 1, 2, 3) == [Outcome.OK] * 4
            await functions.stop()

    asyncio.run(scenario())
