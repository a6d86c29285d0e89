"""What a judge is shown of a response: its text, and the columns of the prompt's row. Importing this needs no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tailrace.data.detokenizer import Decode
from tailrace.rewards.score_task import ScoreTask
from tailrace.workers.reward_tasks import RewardTask, TokenTask

OF_RESPONSES = ("response", "prompt_text")
"""Fields of a template that are no columns."""


def text_of(task: RewardTask, decode: Decode | None) -> ScoreTask:
    """The task with its text; ``OSError`` or ``DamagedStore`` if the response cannot be read."""
    if isinstance(task, ScoreTask):
        return task
    assert isinstance(task, TokenTask)
    assert decode is not None, "tokens need a detokenizer"
    return task.read(decode)


def fields_of(task: ScoreTask) -> Mapping[str, str]:
    """What a template may show: the columns of the prompt's row, ``response`` and ``prompt_text``. What is not a text
    is written as JSON."""
    values = {**task.row, "prompt_text": task.prompt_text, "response": task.response}
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        for name, value in values.items()
    }


def no_such_column(error: KeyError) -> str:
    return f"the template has the field {error}, and the prompt's row has no such column"
