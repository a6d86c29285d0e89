"""From a data file to scores: the parts of a run between reading prompts and training, without an engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

from data.counting_tokenizer import TEMPLATE, tokenizer
from tailrace.config.settings import Settings
from tailrace.core.ids import GroupId, ResponseId
from tailrace.data.prompts import Prompt, PromptSet
from tailrace.data.training import TrainingPrompts
from tailrace.rewards.assignment import RewardAssignment
from tailrace.rewards.score_task import ScoreResult, ScoreTask
from tailrace.runtime.launchers.process import ProcessLauncher
from tailrace.runtime.rewards.reward_pool import RewardPool


def training(settings: Settings) -> TrainingPrompts:
    return TrainingPrompts.load("train", settings.data, tokenizer(chat_template=TEMPLATE), seed=0)


def scores(settings: Settings, prompts: PromptSet, responses: list[tuple[int, str]], logs: Path) -> list[ScoreResult]:
    """Results of (prompt index, response), in that order, by real reward processes."""
    plan = RewardAssignment.make(settings, [prompts])
    tasks = [_task(member, prompts[index], text, plan) for member, (index, text) in enumerate(responses)]

    async def scenario() -> list[ScoreResult]:
        results: dict[int, ScoreResult] = {}
        complete = asyncio.Event()

        def receive(result: ScoreResult) -> None:
            results[result.response_id.member] = result
            if len(results) == len(tasks):
                complete.set()

        pool = RewardPool(settings.reward, launch=ProcessLauncher(logs), on_result=receive, uses=plan.uses)
        await pool.start()
        try:
            for task in tasks:
                pool.submit(task)
            async with asyncio.timeout(100):
                await complete.wait()
        finally:
            await pool.stop()
        return [results[member] for member in range(len(tasks))]

    return asyncio.run(scenario())


def _task(member: int, prompt: Prompt, response: str, plan: RewardAssignment) -> ScoreTask:
    return ScoreTask(
        response_id=ResponseId(GroupId("train", 0, prompt.index), member),
        row=prompt.row,
        response=response,
        prompt_text=prompt.text,
        prompt_tokens=tuple(prompt.tokens.tolist()),
        response_tokens=tuple(range(len(response))),
        rewards=plan.asked(prompt),
        source=prompt.source,
    )
