"""The parts of scores in real processes: none waits for another."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from tailrace.config.reward_settings import RewardFunctionSettings, RewardSettings
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.outcomes import Outcome, Part
from tailrace.rewards.assignment import reward_use
from tailrace.rewards.score_task import ScoreTask
from tailrace.runtime.launchers.process import ProcessLauncher
from tailrace.runtime.rewards.case_limits import NewestLimits
from tailrace.runtime.rewards.reward_pool import RewardPool
from tailrace.runtime.rewards.score_batcher import ScoreBatcher
from tailrace.runtime.rewards.score_parts import ScorePart, ScoreParts
from tailrace.runtime.rewards.scoring import Scoring
from tailrace.runtime.threads.work_thread import WorkThread

IDS = tuple(ResponseId(GroupId("train", 0, 0), member) for member in range(3))
WAIT_S = 120.0
FUNCTIONS = """
import pathlib, time
def quick(response): return 1.0
def waits(response, gate):
    while not pathlib.Path(gate).exists(): time.sleep(0.01)
    return 2.0
def hangs(response): time.sleep(1000)
def told_limit(response, gate, case_limits=None):
    pathlib.Path(gate + ".begun").touch()
    waits(response, gate)
    return case_limits.others_s
"""


class Stage:
    """Two parts, each with a reward process, and what the core is told of them."""

    def __init__(self, folder: Path, slow: str, *, timeout_s: float = 60.0) -> None:
        file = folder / "functions.py"
        file.write_text(FUNCTIONS)
        self.gate = folder / "gate"
        self.told: asyncio.Queue[ev.ResponsesScored] = asyncio.Queue()
        self.work = WorkThread("tasks")
        launch = ProcessLauncher(folder / "logs")
        functions = {Part.FUNCTION: f"{file}:quick", Part.TESTS: f"{file}:{slow}"}

        def make(part: Part) -> ScorePart:
            settings = RewardSettings(timeout_s=timeout_s)
            use = reward_use(settings, RewardFunctionSettings(function=functions[part]), ("prompt", "gate"))
            scores = ScoreBatcher(self.told.put_nowait, part)
            limits = NewestLimits()
            pool = RewardPool(settings, launch=launch, on_result=scores.add, part=part, uses=(use,), limits=limits)

            def applies(response: ResponseId) -> bool:
                return part is Part.FUNCTION or response != IDS[-1]

            scoring = Scoring(pool, scores, task=self._task, work=self.work, applies=applies, limits=limits)
            return ScorePart(pool=pool, scoring=scoring)

        self.parts = ScoreParts({part: make(part) for part in (Part.FUNCTION, Part.TESTS)})

    def _task(self, response: ResponseId) -> ScoreTask:
        return ScoreTask(response_id=response, row={"prompt": "", "gate": str(self.gate)}, response="")

    def ask(self, part: Part, responses: Iterable[ResponseId] = IDS) -> None:
        self.parts.perform(do.Score(responses=tuple(responses), part=part))

    async def hear(self, part: Part, count: int) -> list[ev.Scored]:
        """This many scores of a part; there must be none of another before them."""
        scores: list[ev.Scored] = []
        while len(scores) < count:
            async with asyncio.timeout(WAIT_S):
                event = await self.told.get()
            assert event.part is part
            scores += event.scores
        return scores


def test_a_slow_part_holds_up_no_other(tmp_path: Path) -> None:
    async def act() -> None:
        stage = Stage(tmp_path, "waits")
        try:
            await stage.parts.start()
            stage.ask(Part.TESTS, IDS[:2])
            stage.ask(Part.FUNCTION)
            scores = await stage.hear(Part.FUNCTION, 3)
            assert {scored.score for scored in scores} == {1.0}
            stage.gate.touch()  # only now can the other part end
            slow = await stage.hear(Part.TESTS, 2)
            assert [scored.score for scored in slow] == [2.0, 2.0]
            assert max(scored.queued_s for scored in slow) > 0, "the second one waited for the first"
        finally:
            await stage.parts.stop()
            stage.work.close()

    asyncio.run(act())


def test_a_response_that_waits_runs_with_the_limits_that_were_said_last(tmp_path: Path) -> None:
    async def act() -> None:
        stage = Stage(tmp_path, "told_limit")
        try:
            await stage.parts.start()
            limits = (do.CaseLimits(30.0), do.CaseLimits(30.0))
            stage.parts.perform(do.Score(responses=IDS[:2], part=Part.TESTS, limits=limits))
            while not (tmp_path / "gate.begun").exists():
                await asyncio.sleep(0.01)
            stage.parts.perform(do.LimitCases(responses=IDS[:2], limits=do.CaseLimits(2.0)))
            stage.gate.touch()
            scores = {scored.response: scored.score for scored in await stage.hear(Part.TESTS, 2)}
            assert scores == {IDS[0]: 30.0, IDS[1]: 2.0}, "the first one had begun"
        finally:
            await stage.parts.stop()
            stage.work.close()

    asyncio.run(act())


def test_a_response_without_this_part_abstains_at_once(tmp_path: Path) -> None:
    async def act() -> None:
        stage = Stage(tmp_path, "waits")
        try:
            await stage.parts.start()
            stage.ask(Part.TESTS)
            [scored] = await stage.hear(Part.TESTS, 1)
            assert (scored.response, scored.outcome) == (IDS[-1], Outcome.ABSTAINED)
            stage.gate.touch()
            assert {scored.outcome for scored in await stage.hear(Part.TESTS, 2)} == {Outcome.OK}
        finally:
            await stage.parts.stop()
            stage.work.close()

    asyncio.run(act())


def test_a_part_is_aborted_without_the_others(tmp_path: Path) -> None:
    async def act() -> None:
        stage = Stage(tmp_path, "hangs")
        try:
            await stage.parts.start()
            stage.ask(Part.TESTS, IDS[:2])
            stage.parts.perform(do.AbortScores(responses=IDS[:2], part=Part.TESTS))
            assert {scored.outcome for scored in await stage.hear(Part.TESTS, 2)} == {Outcome.ABORTED}
            stage.ask(Part.FUNCTION)
            assert {scored.outcome for scored in await stage.hear(Part.FUNCTION, 3)} == {Outcome.OK}
        finally:
            await stage.parts.stop()
            stage.work.close()

    asyncio.run(act())


def test_workers_of_a_part_are_named_after_it_and_have_logs_of_their_own(tmp_path: Path) -> None:
    async def act() -> None:
        stage = Stage(tmp_path, "hangs")
        try:
            await stage.parts.start()
        finally:
            await stage.parts.stop()
            stage.work.close()

    asyncio.run(act())
    assert sorted(path.stem for path in (tmp_path / "logs").glob("*.log")) == ["reward-0", "tests-0"]


def test_a_part_that_cannot_start_is_refused_and_leaves_no_process_behind(tmp_path: Path) -> None:
    async def act() -> None:
        stage = Stage(tmp_path, "missing")
        with pytest.raises(ValueError, match="does not exist"):
            await stage.parts.start()
        await stage.parts.stop()
        stage.work.close()

    asyncio.run(act())
