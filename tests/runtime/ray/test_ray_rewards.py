"""Actors that run the programs of responses, and actors that hold a judge: they are killed, and others go on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs the extra 'ray'")

from contract.worker_story import Story
from tailrace.config.reward_settings import RewardSettings
from tailrace.config.settings import Settings
from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.outcomes import Outcome, Part
from tailrace.data.models import resolve_model
from tailrace.judge.template import AnswerWord, JudgeTemplate
from tailrace.rewards.score_task import ScoreTask
from tailrace.runtime.launchers.worker import WorkerHandle, WorkerSpec
from tailrace.runtime.ray.launcher import RayLauncher
from tailrace.runtime.ray.resources import PlacementGroups
from tailrace.runtime.rewards.reward_pool import RewardPool
from tailrace.sizing.device_plan import demand_of, plan_devices
from tailrace.workers.judge_messages import JudgeInit, JudgeReady, JudgeResponses, PassStarted, ResponsesJudged

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_on_this_machine")]

JUDGE = JudgeInit(
    model_path=resolve_model("tiny-arith"),
    template=JudgeTemplate(user="{prompt}{response}+0=", is_chat=False),
    answers=(AnswerWord(word="1", value=1.0), AnswerWord(word="2", value=0.0)),
    device="cpu",
    dtype="float32",
    threads=1,
)
GIVEN = {
    "model": {"device": "cpu"},
    "reward": {"functions": ["judge", "code_tests"], "judge": {"model": "tiny-arith"}},
    "ray": {"tests": {"cpus": 0.25}, "judge": {"cpus": 0.25}},
}


def placement() -> PlacementGroups:
    settings = Settings.model_validate(GIVEN)
    return PlacementGroups(settings.ray.resources, plan=plan_devices(demand_of(settings, trains=True), ()))


def task(member: int, response: str) -> ScoreTask:
    row = {"prompt": "3+4=", "tests": [{"input": "", "output": "1"}]}
    return ScoreTask(response_id=ResponseId(GroupId("train", 0, 1), member), row=row, response=response)


def test_an_actor_in_the_middle_of_a_program_is_killed_and_replaced(tmp_path: Path) -> None:
    code = {"mode": "weak", "case_timeout_s": 500.0, "workers": 1}
    settings = RewardSettings.model_validate({"functions": ["code_tests"], "code_tests": code, "timeout_s": 600.0})
    has_begun = tmp_path / "begun"

    async def scenario() -> None:
        results: asyncio.Queue[Any] = asyncio.Queue()
        pool = RewardPool(
            settings,
            launch=RayLauncher(tmp_path, placement()),
            on_result=results.put_nowait,
            part=Part.TESTS,
            columns=("tests",),
        )
        await pool.start()
        assert (tmp_path / "tests-0.log").exists()
        endless = task(0, f"import time\nopen({str(has_begun)!r}, 'w')\ntime.sleep(400)")
        pool.submit(endless)
        async with asyncio.timeout(120.0):
            while not has_begun.exists():
                await asyncio.sleep(0.02)
            pool.abort([endless.response_id])
            assert (await results.get()).outcome is Outcome.ABORTED
            pool.submit(task(1, "print(1)"))
            good = await results.get()
        assert (good.outcome, good.score) == (Outcome.OK, 1.0)
        await pool.stop()

    asyncio.run(scenario())


def start_judge(logs: Path, story: Story) -> WorkerHandle:
    spec = WorkerSpec(name="judge-0", entry="tailrace.workers.judge_worker:serve", init=JUDGE)
    return RayLauncher(logs, placement())(spec, hear=story.hear, lose=story.lose)


def test_a_judge_that_is_an_actor_is_killed_and_another_one_gives_the_score(tmp_path: Path) -> None:
    async def scenario() -> None:
        killed, story = Story(), Story()
        first = start_judge(tmp_path, killed)
        assert isinstance(await killed.message(0), JudgeReady)
        first.kill()
        assert (await killed.ending()).startswith("worker 'judge-0'")
        second = start_judge(tmp_path, story)
        assert isinstance(await story.message(0), JudgeReady)
        second.send(JudgeResponses(tasks=(task(0, "7"),)))
        assert isinstance(await story.message(1), PassStarted)
        judged = await story.message(2)
        assert isinstance(judged, ResponsesJudged)
        [result] = judged.results
        assert (result.outcome, 0.0 <= result.score <= 1.0) == (Outcome.OK, True)
        await second.stop(grace_s=20.0)

    asyncio.run(scenario())
