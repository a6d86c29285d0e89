"""Shapes of a reward function: what its parameters mean, and how its result is read.

The names of the parameters tell the shape, and the shape fills them, so that functions written for other systems run
unchanged. `answer` stands for whichever of its names a function uses.

    Plain      response, answer, prompt, columns; verl: data_source,       a number, or a dict with `score`
               solution_str, ground_truth, extra_info
    Texts      AReaL: prompt, completions, prompt_ids, completion_ids,     a number, or a dict with `score`
               columns
    Batched    TRL: prompts, completions, completion_ids, columns,         a list of numbers or None
               all as lists
    Queries    OpenRLHF: queries, prompts, labels, as lists                a list, or a dict with `rewards`
    Sample     slime: args, sample                                         a number, or a dict with `score`

Batches hold one response. Every shape may be asynchronous.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any, Protocol

from tailrace.rewards.score_task import ScoreTask

RESPONSE_NAMES = ("response", "completion", "solution_str")
ANSWER_NAMES = ("answer", "ground_truth", "label", "solution", "reference")

Values = dict[str, object]


class NotApplicable(Exception):
    """The function has no opinion on this response."""


class Shape(Protocol):
    """How one kind of function is called."""

    def available(self, columns: Collection[str]) -> list[str]:
        """Names that can be filled where rows hold these columns."""

    def values(self, task: ScoreTask) -> Values:
        """Every value a parameter can be filled with, by name."""

    def rest(self, task: ScoreTask) -> Values:
        """Return the values that a reward function's `**kwargs` receives."""

    def result(self, returned: Any) -> object:
        """The number or dict with `score` in what the function returned; or raise ``NotApplicable``."""


def shape_of(names: Collection[str]) -> Shape:
    """The shape of a function with these parameters."""
    if "args" in names and {"sample", "samples"} & set(names):
        return SlimeSample()
    if "queries" in names:
        return Queries()
    if "completions" in names:
        return Texts() if "prompt" in names else Batched()
    # TRL's penalties on length look at tokens alone.
    has_only_ids = "completion_ids" in names and not {*RESPONSE_NAMES, "prompt"} & set(names)
    return Batched() if has_only_ids else Plain()


class Plain:
    _GIVEN = (*RESPONSE_NAMES, "completions", "prompt", "data_source", "extra_info", "prompt_ids", "completion_ids")

    def available(self, columns: Collection[str]) -> list[str]:
        answers = ANSWER_NAMES if "answer" in columns else ()
        return list(dict.fromkeys([*self._GIVEN, *answers, *columns]))

    def values(self, task: ScoreTask) -> Values:
        ids: Values = {"prompt_ids": list(task.prompt_tokens), "completion_ids": list(task.response_tokens)}
        limits: Values = {} if task.case_limits is None else {"case_limits": task.case_limits}
        texts = dict.fromkeys((*RESPONSE_NAMES, "completions"), task.response)
        return _answers(task) | self.rest(task) | ids | texts | limits

    def rest(self, task: ScoreTask) -> Values:
        return _about(task) | dict(task.row) | {"response": task.response}

    def result(self, returned: Any) -> object:
        return returned


class Texts(Plain):
    """One `prompt` beside `completions`: both are the text that the model saw and wrote."""

    def values(self, task: ScoreTask) -> Values:
        return Plain.values(self, task) | {"prompt": _prompt_text(task)}


class Batched:
    """Every value is a list of one. Where the prompt is a chat, so is the completion."""

    _GIVEN = ("completions", "prompts", "completion_ids", "prompt_ids", "data_source", "extra_info")
    _OF_THE_TRAINER = ("trainer_state", "log_extra", "log_metric")
    """There is no trainer in the reward's process: a state of nothing, and notes that nobody keeps."""

    def available(self, columns: Collection[str]) -> list[str]:
        answers = ANSWER_NAMES if "answer" in columns else ()
        return list(dict.fromkeys([*self._GIVEN, *answers, *columns, *self._OF_THE_TRAINER]))

    def values(self, task: ScoreTask) -> Values:
        return {name: [value] for name, value in _answers(task).items()} | self.rest(task)

    def rest(self, task: ScoreTask) -> Values:
        is_chat = not isinstance(task.row.get("prompt"), str)
        completion: object = [{"role": "assistant", "content": task.response}] if is_chat else task.response
        columns = {name: value for name, value in task.row.items() if name not in ("prompt", "completion")}
        given: Values = {
            "prompts": task.row.get("prompt"),
            "completions": completion,
            "prompt_ids": list(task.prompt_tokens),
            "completion_ids": list(task.response_tokens),
        }
        lists: Values = {name: [value] for name, value in (_about(task) | columns | given).items()}
        return lists | {"trainer_state": None, "log_extra": _ignore, "log_metric": _ignore}

    def result(self, returned: Any) -> object:
        return _only(returned)


class Queries:
    """`queries` are prompt and response in one text."""

    def available(self, columns: Collection[str]) -> list[str]:
        return ["queries", "prompts", *(["labels"] if "answer" in columns else [])]

    def values(self, task: ScoreTask) -> Values:
        labels = {"labels": [task.row["answer"]]} if "answer" in task.row else {}
        return {"queries": [_prompt_text(task) + task.response], "prompts": [_prompt_text(task)], **labels}

    def rest(self, task: ScoreTask) -> Values:
        return {}

    def result(self, returned: Any) -> object:
        if not isinstance(returned, Mapping) or "rewards" not in returned:
            return _only(returned)
        logs = returned.get("extra_logs") or {}
        return {"score": _only(returned["rewards"])} | {name: _only(value) for name, value in logs.items()}


class SlimeSample:
    """`sample` is an object with the fields that slime's rewards read; `args` names the function and little else."""

    def available(self, columns: Collection[str]) -> list[str]:
        return ["args", "sample"]

    def values(self, task: ScoreTask) -> Values:
        group = task.response_id.group
        metadata = task.row.get("metadata")
        sample = SimpleNamespace(
            group_index=group.prompt,
            index=task.response_id.member,
            prompt=task.prompt_text or task.row.get("prompt"),
            response=task.response,
            label=task.row.get("answer"),
            tokens=[*task.prompt_tokens, *task.response_tokens],
            response_length=len(task.response_tokens),
            metadata=metadata if isinstance(metadata, Mapping) else _others(task),
            reward=None,
        )
        return {"args": SimpleNamespace(rm_type=None, group_rm=False, reward_key=None), "sample": sample}

    def rest(self, task: ScoreTask) -> Values:
        return {}

    def result(self, returned: Any) -> object:
        return returned


def _answers(task: ScoreTask) -> Values:
    return dict.fromkeys(ANSWER_NAMES, task.row["answer"]) if "answer" in task.row else {}


def _about(task: ScoreTask) -> Values:
    return {"data_source": task.source or task.response_id.group.source, "extra_info": _others(task)}


def _others(task: ScoreTask) -> Values:
    return {name: value for name, value in task.row.items() if name not in ("prompt", "answer")}


def _prompt_text(task: ScoreTask) -> str:
    return task.prompt_text or str(task.row.get("prompt", ""))


def _only(values: Any) -> object:
    """The one element of a list, an array or a tensor; anything else stays as it is, for the reader to complain."""
    if isinstance(values, Mapping | str) or not hasattr(values, "__len__"):
        return values
    if len(values) != 1:
        return values
    (value,) = values
    if value is None:
        raise NotApplicable
    return value


def _ignore(*_: object) -> None:
    pass
