"""Tries the judge before a run, without its weights: it may be a large model.

The files of the model, its tokenizer, the template and the answer words have been checked when this begins
(``runtime/inputs/judge_source.py``). A server is sent one request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from tailrace.commands.preflight.reward_trial import Trial, launcher_of_trials, made_up_task, trial_line
from tailrace.config.settings import Settings
from tailrace.core.outcomes import Outcome, Part
from tailrace.data.tokenizer import load_tokenizer
from tailrace.judge.template import TemplateReader
from tailrace.rewards.assignment import JUDGE
from tailrace.rewards.score_task import ScoreResult, ScoreTask
from tailrace.runtime.adapters.first_messages import judge_init
from tailrace.runtime.adapters.open_judges import open_judges
from tailrace.runtime.inputs.sources import Sources
from tailrace.runtime.launchers.worker import Launcher
from tailrace.workers.judged_text import fields_of


def judge_lines(settings: Settings, sources: Sources) -> Iterator[str]:
    """What was tried, in lines; none if no prompt asks for the judge. ``ValueError`` if a server cannot be used."""
    if sources.judge is None:
        return
    task = made_up_task(0, JUDGE, sources)
    if sources.judge.model is not None:
        reader = TemplateReader(sources.judge.template, load_tokenizer(sources.judge.model))
        yield (
            "reward judge: its files, tokenizer, template and answer words fit; the text about a made-up response has"
            f" {len(reader.tokens(fields_of(task)))} tokens; the weights were not loaded"
        )
        return
    with launcher_of_trials() as launch:
        result = asyncio.run(_ask(settings, sources, task, launch))
    if result.outcome not in (Outcome.OK, Outcome.INVALID):  # invalid: the judge said something else this time
        raise ValueError(f"reward judge: the server cannot be used: {result.detail}")
    yield trial_line(
        Trial(function=JUDGE, source=task.response_id.group.source, result=result),
        on_failure=settings.reward.on_failure,
    )


async def _ask(settings: Settings, sources: Sources, task: ScoreTask, launch: Launcher) -> ScoreResult:
    (use,) = sources.rewards.uses_of(Part.JUDGE)
    found: asyncio.Future[ScoreResult] = asyncio.get_running_loop().create_future()
    pool = open_judges(
        settings.reward.judge.model_copy(update={"workers": 1}),
        judge_init(settings, sources),
        use=use,
        start_s=settings.limits.start_s,
        launch=launch,
        env=lambda number: {},
        on_result=found.set_result,
        say=lambda line: None,
    )
    await pool.start()
    try:
        pool.submit(task)
        return await found
    finally:
        await pool.stop()
