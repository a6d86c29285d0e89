"""`code_tests` in reward processes: a program that is aborted or outlives its process leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from rewards.sandbox.players import needs_bubblewrap
from tailrace.config.code_settings import CodeTestsSettings
from tailrace.config.reward_settings import RewardFunctionSettings, RewardSettings
from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.outcomes import Outcome
from tailrace.rewards.score_task import ScoreResult, ScoreTask
from tailrace.runtime.launchers.process import ProcessLauncher
from tailrace.runtime.rewards.reward_pool import RewardPool

pytestmark = [pytest.mark.slow, needs_bubblewrap]
ROW = {"prompt": "Say one.", "tests": [{"input": "", "output": "1"}]}


def task(member: int, response: str) -> ScoreTask:
    return ScoreTask(response_id=ResponseId(GroupId("train", 0, 1), member), row=ROW, response=response)


class Watch:
    """Processes below this one that isolate programs, and the memory cgroups of all that were ever below it."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def __call__(self) -> list[str]:
        pids = below(os.getpid())
        self._seen |= set(map(str, pids))
        groups = Path("/sys/fs/cgroup").glob("**/tailrace-sandbox-*")
        found = [path.name for path in groups if path.name.split("-")[2] in self._seen]
        return found + [str(pid) for pid in pids if b"bwrap" in read(f"/proc/{pid}/cmdline")]


def below(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        for path in Path(f"/proc/{each}/task").glob("*/children"):
            found += map(int, read(str(path)).split())
    return found[1:]


def read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


async def until(question, wanted: bool) -> None:
    async with asyncio.timeout(120):
        while bool(question()) is not wanted:
            await asyncio.sleep(0.02)


def test_a_program_in_the_middle_of_its_case_leaves_nothing_when_its_process_is_killed(tmp_path: Path) -> None:
    async def run() -> list[ScoreResult]:
        results: list[ScoreResult] = []
        programs_and_groups = Watch()
        settings = RewardSettings(
            functions=(RewardFunctionSettings(function="code_tests"),),
            timeout_s=600.0,
            code_tests=CodeTestsSettings(case_timeout_s=500.0),
        )
        pool = RewardPool(
            settings, launch=ProcessLauncher(tmp_path / "logs"), on_result=results.append, columns=("tests",)
        )
        await pool.start()
        try:
            endless = task(0, "import time\ntime.sleep(400)")
            pool.submit(endless)
            await until(programs_and_groups, True)
            pool.abort([endless.response_id])
            pool.submit(task(1, "print(1)"))
            async with asyncio.timeout(120):
                while len(results) < 2:
                    await asyncio.sleep(0.02)
            pool.submit(task(2, "import time\ntime.sleep(400)"))
            await until(programs_and_groups, True)
        finally:
            await pool.stop()
        await until(programs_and_groups, False)
        return results

    aborted, scored = asyncio.run(run())
    assert (aborted.outcome, scored.outcome, scored.score) == (Outcome.ABORTED, Outcome.OK, 1.0)
