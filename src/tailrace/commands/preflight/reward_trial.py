"""Tries the reward functions before a run: a reward process loads them and scores a made-up response with each. The
reward `judge` is no function (``judge_trial.py``).

The process is started, limited and killed as in a run. It leaves nothing behind: its log lies in a temporary folder,
and Python compiles no file beside the functions.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tailrace.config.reward_settings import RewardSettings
from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.outcomes import Outcome
from tailrace.data.prompts import Prompt
from tailrace.rewards.assignment import JUDGE
from tailrace.rewards.score_task import RewardUse, ScoreResult, ScoreTask
from tailrace.runtime.inputs.sources import Sources
from tailrace.runtime.launchers.process import ProcessLauncher
from tailrace.runtime.launchers.worker import Hear, Launcher, Lose, WorkerHandle, WorkerSpec
from tailrace.runtime.rewards.reward_pool import RewardPool

_MOST_TOKENS = 64
"""Length of the made-up response, which is the beginning of the prompt: a text that the tokenizer knows."""
_NO_COMPILED_FILES = {"PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A function that was loaded, and what it made of the made-up response."""

    function: str
    source: str
    """The source of the prompt."""
    result: ScoreResult


def try_rewards(settings: RewardSettings, sources: Sources) -> list[Trial]:
    """One trial for each function of the run; ``ValueError`` if a function cannot be loaded."""
    uses = [use for use in sources.rewards.uses if use.function != JUDGE]
    if not uses:
        return []
    tasks = {use.function: made_up_task(number, use.function, sources) for number, use in enumerate(uses)}
    with launcher_of_trials() as launch:
        results = asyncio.run(_score(settings, uses, list(tasks.values()), launch))
    return [
        Trial(function=function, source=task.response_id.group.source, result=results[task.response_id])
        for function, task in tasks.items()
    ]


def trial_line(trial: Trial, *, on_failure: str) -> str:
    """``on_failure``: the setting of that name."""
    result = trial.result
    loaded = f"reward {trial.function}: loaded"
    if result.outcome is Outcome.OK:
        return (
            f"{loaded}; a made-up response to a prompt of '{trial.source}' scores {result.score:g}"
            f" ({result.seconds * 1000:.1f} ms)"
        )
    lost = "score 0" if on_failure == "zero" else "no score and leaves its group"
    return f"{loaded}; note: a made-up response has no score: {result.detail}; in a run such a response gets {lost}"


async def _score(
    settings: RewardSettings, uses: Sequence[RewardUse], tasks: Sequence[ScoreTask], launch: Launcher
) -> Mapping[ResponseId, ScoreResult]:
    results: dict[ResponseId, ScoreResult] = {}
    all_there = asyncio.Event()

    def keep(result: ScoreResult) -> None:
        results[result.response_id] = result
        if len(results) == len(tasks):
            all_there.set()

    pool = RewardPool(settings.model_copy(update={"workers": 1}), launch=launch, on_result=keep, uses=uses)
    await pool.start()
    try:
        for task in tasks:
            pool.submit(task)
        await all_there.wait()
    finally:
        await pool.stop()
    return results


@contextmanager
def launcher_of_trials() -> Iterator[Launcher]:
    """Starts workers that leave nothing behind."""
    with tempfile.TemporaryDirectory(prefix="tailrace-dry-run-") as logs:
        yield _WithoutTraces(ProcessLauncher(Path(logs)))


def made_up_task(number: int, function: str, sources: Sources) -> ScoreTask:
    source, prompt = _prompt_for(function, sources)
    tokens = prompt.tokens[:_MOST_TOKENS]
    return ScoreTask(
        response_id=ResponseId(GroupId(source, 0, prompt.index), number),
        row=prompt.row,
        response=sources.decode(tokens, skip_special_tokens=True),
        prompt_text=prompt.text,
        prompt_tokens=tuple(prompt.tokens.tolist()),
        response_tokens=tuple(tokens.tolist()),
        rewards=(function,),
        source=prompt.source,
    )


def _prompt_for(function: str, sources: Sources) -> tuple[str, Prompt]:
    """The first prompt that asks for this function, and the name of its source."""
    return next(
        (name, prompt)
        for name, source in sources.contents.items()
        for prompt in source.prompts.prompts.values()
        if function in sources.rewards.asked(prompt, name)
    )


class _WithoutTraces:
    """Starts workers that write no compiled files."""

    shares_files = True

    def __init__(self, launch: Launcher) -> None:
        self._launch = launch

    def __call__(self, spec: WorkerSpec, *, hear: Hear, lose: Lose) -> WorkerHandle:
        return self._launch(replace(spec, env={**spec.env, **_NO_COMPILED_FILES}), hear=hear, lose=lose)
