"""Lengths of a model's responses to a set of prompts, as one JSON file: ``lengths.json``.

`tailrace rollout` writes it; whoever needs real lengths without a model, as a simulator does, reads it. ``read`` also
takes a bare list of lists of lengths, one list per prompt; what such a file does not say is None or empty.
docs/debugging.md describes the format.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.outcomes import Outcome
from tailrace.observe.prompts.fates import Fate, Fates

SCHEMA, VERSION = "tailrace/length-trace", 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLengths:
    """One prompt and its responses; the tuples are in the order of the group's members."""

    source: str
    epoch: int
    index: int
    prompt_length: int | None
    lengths: tuple[int, ...]
    finishes: tuple[str, ...] = ()
    """`stop`, or `length` if the cap ended the response: its real length is not known."""
    scores: tuple[float | None, ...] = ()
    """None where the reward failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthTrace:
    model: str | None
    cap: int | None
    """Most tokens a response could have."""
    group_size: int
    prompts: tuple[PromptLengths, ...]
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def length_of(self, response: ResponseId) -> int:
        """The length that stands for this response, in a run or simulation of any prompts: prompt i has row i modulo
        the rows. A new attempt is another sample of the same prompt, so it takes another entry of the same row."""
        row = self.prompts[response.group.prompt % len(self.prompts)].lengths
        return row[(response.member + response.attempt) % len(row)]


def of_fates(fates: Fates, prompt_length: Callable[[GroupId], int]) -> tuple[PromptLengths, ...]:
    """The settled groups of a journal, in the order of their offers."""
    return tuple(_prompt(fate, prompt_length(fate.group)) for fate in fates.settled())


def _prompt(fate: Fate, prompt_length: int) -> PromptLengths:
    notes = [fate.responses[response] for response in sorted(fate.responses)]
    return PromptLengths(
        source=fate.group.source,
        epoch=fate.group.epoch,
        index=fate.group.prompt,
        prompt_length=prompt_length,
        lengths=tuple(note.length for note in notes),
        finishes=tuple(note.finish.value for note in notes if note.finish is not None),
        scores=tuple(note.score if note.outcome is Outcome.OK else None for note in notes),
    )


def write(path: Path, trace: LengthTrace) -> None:
    """One line per prompt. The file appears when all of it is on disk."""
    head = {"schema": SCHEMA, "version": VERSION, "model": trace.model, "cap": trace.cap}
    head |= {"group_size": trace.group_size, "sampling": dict(trace.sampling)}
    rows = ",\n".join(json.dumps(asdict(prompt)) for prompt in trace.prompts)
    draft = path.with_name(path.name + ".draft")
    with draft.open("w", encoding="utf-8") as file:
        file.write(f'{json.dumps(head)[:-1]}, "prompts": [\n{rows}\n]}}\n')
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def read(path: Path) -> LengthTrace:
    """Read a length trace. Raises ``ValueError`` with the reason if the file is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read the length trace {path}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    try:
        return _from_lists(data) if isinstance(data, list) else _from_object(data)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a length trace: {error}") from None


def _from_object(data: Mapping[str, Any]) -> LengthTrace:
    if (data["schema"], data["version"]) != (SCHEMA, VERSION):
        raise ValueError(f"it is {data['schema']} version {data['version']}, expected {SCHEMA} version {VERSION}")
    return LengthTrace(
        model=data["model"],
        cap=data["cap"],
        group_size=data["group_size"],
        sampling=data["sampling"],
        prompts=tuple(PromptLengths(**_with_tuples(row)) for row in data["prompts"]),
    )


def _with_tuples(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}


def _from_lists(data: list[list[int]]) -> LengthTrace:
    if not data or not all(lengths and all(type(length) is int for length in lengths) for lengths in data):
        raise ValueError("expected a list of lists of lengths")
    prompts = (
        PromptLengths(source="", epoch=0, index=index, prompt_length=None, lengths=tuple(lengths))
        for index, lengths in enumerate(data)
    )
    return LengthTrace(model=None, cap=None, group_size=max(map(len, data)), prompts=tuple(prompts))
