"""Finds the columns that hold the prompt and the answer: by their names here, then by those of other systems.

* A dotted name is a column inside a column: `reward_model.ground_truth`.
* Columns that only one system writes are looked for before common names, because a row may have both.
* The result of a row has `prompt`, `answer` (if there is one) and all columns of the row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from tailrace.data.row import Row

_MISSING = object()
_ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Format:
    system: str
    marks: tuple[str, ...]
    """Columns that only this system writes."""
    prompt: tuple[str, ...]
    answer: tuple[str, ...]


_MARKED = (
    _Format(
        system="verl", marks=("reward_model.ground_truth",), prompt=("prompt",), answer=("reward_model.ground_truth",)
    ),
    _Format(
        system="SkyRL", marks=("reward_spec.ground_truth",), prompt=("prompt",), answer=("reward_spec.ground_truth",)
    ),
    _Format(system="ROLL", marks=("ground_truth", "tag"), prompt=("messages", "prompt"), answer=("ground_truth",)),
)
PROMPT_NAMES = ("prompt", "messages", "question", "input", "problem", "query", "instruction")
ANSWER_NAMES = ("answer", "ground_truth", "label", "solution", "target", "output")
_COMMON = _Format(system="", marks=(), prompt=PROMPT_NAMES, answer=ANSWER_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns of one source that hold the prompt and the answer."""

    prompt: str
    answer: str | None
    system: str = ""
    """The system that writes this format, if the columns show it."""

    @classmethod
    def detect(cls, source: str, rows: Sequence[Row], *, prompt: str | None = None, answer: str | None = None) -> Self:
        """Find the columns of these rows. `prompt` and `answer`: the user's own choice, which is taken as it is."""
        first = rows[0]
        found = next((f for f in _MARKED if all(_at(first, mark) is not _MISSING for mark in f.marks)), _COMMON)
        chosen_prompt = prompt or _first_that_fits(found.prompt, first)
        if chosen_prompt is None:
            raise ValueError(
                f"{source} has no prompt column; it has {', '.join(first) or 'nothing'}; "
                "name the right one with data.prompt_column"
            )
        answers = [name for name in found.answer if name != chosen_prompt]
        chosen_answer = answer or _first_present(answers, rows)
        if answer is not None and _first_present([answer], rows) is None:
            raise ValueError(f"{source} has no column {answer!r} (answer_column); it has {', '.join(first)}")
        is_guessed = prompt is None and answer is None
        return cls(prompt=chosen_prompt, answer=chosen_answer, system=found.system if is_guessed else "")

    @property
    def note(self) -> str:
        answer = f"answer from {self.answer!r}" if self.answer else "no answer column"
        system = f" ({self.system} format)" if self.system else ""
        return f"prompt from {self.prompt!r}, {answer}{system}"

    @property
    def is_canonical(self) -> bool:
        return self.prompt == "prompt" and self.answer in (None, "answer")

    def canonical(self, row: Row, place: str) -> dict[str, object]:
        """Return the row with `prompt` and `answer`. Raise `ValueError`, which names the place, if it lacks one."""
        prompt = _as_chat(_at(row, self.prompt))
        if prompt is _MISSING:
            raise ValueError(f"{place}: there is no {self.prompt!r}; the row has {', '.join(row) or 'nothing'}")
        _check_prompt(prompt, self.prompt, place)
        values: dict[str, object] = {"prompt": prompt}
        if self.answer is not None and (answer := _at(row, self.answer)) is not _MISSING:
            values["answer"] = answer
        return dict(row) | values


def _at(row: object, dotted: str) -> object:
    """Return the value under a name or a dotted path. A column whose name contains dots is found first."""
    if isinstance(row, dict) and dotted in row:
        return row[dotted]
    head, _, rest = dotted.partition(".")
    if not isinstance(row, dict) or not rest or head not in row:
        return _MISSING
    return _at(row[head], rest)


def _first_that_fits(names: Iterable[str], row: Row) -> str | None:
    """Return the first of these columns that exists. A conversation that ends with a reply is no prompt: skip it."""
    for name in names:
        value = _at(row, name)
        ends_with_reply = name == "messages" and _last_role(_as_chat(value)) == _ASSISTANT
        if value is not _MISSING and value is not None and not ends_with_reply:
            return name
    return None


def _first_present(names: Iterable[str], rows: Sequence[Row]) -> str | None:
    return next((name for name in names if any(_at(row, name) is not _MISSING for row in rows)), None)


def _last_role(chat: object) -> object:
    return chat[-1].get("role") if isinstance(chat, list) and chat and isinstance(chat[-1], dict) else None


def _as_chat(value: object) -> object:
    """Turn chats written as JSON text into lists, and remove keys without a value (table formats add them)."""
    if isinstance(value, str) and value.lstrip().startswith("[{"):
        try:
            parsed = json.loads(value)
        except json.JSONDecodeError:
            return value
        return parsed if _is_chat(parsed) else value
    if isinstance(value, list):
        return [
            {key: part for key, part in message.items() if part is not None or key == "content"}
            if isinstance(message, dict)
            else message
            for message in value
        ]
    return value


def _is_chat(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(m, dict) and isinstance(m.get("role"), str) and "content" in m for m in value)
    )


def _check_prompt(prompt: object, column: str, place: str) -> None:
    if not isinstance(prompt, str) and not _is_chat(prompt):
        raise ValueError(
            f"{place}: {column!r} must be a string or a list of messages with 'role' and 'content', got {prompt!r:.80}"
        )
