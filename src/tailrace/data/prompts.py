"""A set of prompts. It is read, rendered, tokenized and filtered before any work starts.

* The index of a prompt is the number of its row in the file, from 0, and does not depend on the filter. If a set joins
  several sources, the rows of each source follow those of the previous one.
* A string is tokenized with the tokenizer's defaults. A rendered chat template is tokenized without special tokens,
  because the template has its own.
* Prompts with more than `max_prompt_length` tokens are dropped and counted. A set without a usable prompt is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np

from tailrace.config.data_settings import DataSettings
from tailrace.data.columns import Columns
from tailrace.data.gym_tasks import SCORER as GYM_SCORER
from tailrace.data.row import Row
from tailrace.data.rows import GYM_PREFIX, read_rows
from tailrace.store.segment import Tokens

_CHUNK = 1024


class Tokenizer(Protocol):
    """The part of a Transformers tokenizer that prompts need."""

    chat_template: Any

    def __call__(self, text: list[str], *, add_special_tokens: bool = True) -> Any: ...

    def apply_chat_template(self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    index: int
    row: Row
    """All columns of the row, plus `prompt` and `answer`. Reward functions get these."""
    text: str
    """The prompt's tokens, as the model gets them."""
    tokens: Tokens
    rewards: tuple[str, ...] = ()
    """Reward functions that the source or the row names; empty: those of the run."""
    scorer: str | None = None
    """The reward function that belongs to the prompt. It is used if the run names none."""
    source: str = ""
    """Name of the source, if the set joins several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    name: str
    path: str
    prompts: Mapping[int, Prompt]
    """Prompts by index, in the order of the file."""
    columns: tuple[str, ...]
    """Columns that every usable row has."""
    num_rows: int
    num_filtered: int
    """Number of rows dropped because they were too long."""
    notes: tuple[str, ...] = ()
    """Lines to print: which columns were chosen, if the settings do not name them."""

    @classmethod
    def load(
        cls,
        name: str,
        path: str,
        tokenizer: Tokenizer,
        settings: DataSettings,
        *,
        max_prompts: int | None = None,
        prompt_column: str | None = None,
        answer_column: str | None = None,
        rewards: Sequence[str] = (),
    ) -> Self:
        """Read at most `max_prompts` usable prompts. `rewards` take precedence over those that rows name."""
        read = list(read_rows(path))
        if not read:
            raise ValueError(f"{path} holds no prompts; give a file with at least one row")
        columns = Columns.detect(
            path,
            [row for _, row in read],
            prompt=prompt_column or settings.prompt_column,
            answer=answer_column or settings.answer_column,
        )
        rendered = [_render(columns.canonical(row, place), place, tokenizer, settings) for place, row in read]
        scorer = GYM_SCORER if path.startswith(GYM_PREFIX) else None
        prompts: dict[int, Prompt] = {}
        num_filtered = 0
        for index, (item, tokens) in enumerate(_tokenised(rendered, tokenizer)):
            if len(prompts) == max_prompts:
                break
            if not len(tokens):
                raise ValueError(f"{item.place}: the prompt has no tokens")
            if len(tokens) > settings.max_prompt_length:
                num_filtered += 1
                continue
            named = tuple(rewards) or _named_rewards(item.row)
            prompts[index] = Prompt(
                index=index, row=item.row, text=item.text, tokens=tokens, rewards=named, scorer=scorer
            )
        if not prompts:
            raise ValueError(
                f"{path}: all {len(read)} prompts are longer than data.max_prompt_length = "
                f"{settings.max_prompt_length} tokens; raise it"
            )
        return cls(
            name=name,
            path=path,
            prompts=prompts,
            columns=_shared_columns(prompts),
            num_rows=len(read),
            num_filtered=num_filtered,
            notes=() if columns.is_canonical else (f"{name}: {columns.note}",),
        )

    @classmethod
    def join(cls, name: str, parts: Sequence[Self]) -> Self:
        """Join the parts into one set. Each prompt keeps the name of its part."""
        prompts: dict[int, Prompt] = {}
        base = 0
        for part in parts:
            for prompt in part.prompts.values():
                prompts[base + prompt.index] = replace(prompt, index=base + prompt.index, source=part.name)
            base += part.num_rows
        return cls(
            name=name,
            path=f"{len(parts)} sources",
            prompts=prompts,
            columns=_shared_columns(prompts),
            num_rows=base,
            num_filtered=sum(part.num_filtered for part in parts),
            notes=tuple(note for part in parts for note in part.notes),
        )

    def fingerprint(self) -> str:
        """A hash of all prompts, their indices and the columns that rewards get."""
        digest = hashlib.sha256()
        for prompt in self.prompts.values():
            row = json.dumps(prompt.row, sort_keys=True, default=str)
            asked = f"\0{prompt.source}\0{prompt.rewards}" if prompt.source or prompt.rewards else ""
            digest.update(f"{prompt.index}\0{prompt.tokens.tolist()}\0{row}{asked}\n".encode())
        return digest.hexdigest()

    @property
    def indices(self) -> tuple[int, ...]:
        return tuple(self.prompts)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return max(len(prompt.tokens) for prompt in self.prompts.values())

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, index: int) -> Prompt:
        return self.prompts[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rendered:
    place: str
    row: Row
    text: str
    is_template: bool


def _render(row: Row, place: str, tokenizer: Tokenizer, settings: DataSettings) -> _Rendered:
    prompt = row["prompt"]
    is_chat = not isinstance(prompt, str)
    if is_chat and settings.apply_chat_template is False:
        raise ValueError(f"{place}: 'prompt' is a chat list, but data.apply_chat_template is false")
    if not is_chat and not settings.apply_chat_template:
        return _Rendered(place=place, row=row, text=str(prompt), is_template=False)
    if tokenizer.chat_template is None:
        raise ValueError(
            f"{place}: the prompt needs a chat template, and the model's tokenizer has none; write prompts as text"
        )
    messages = prompt if is_chat else [{"role": "user", "content": prompt}]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template is a program of its own and may raise anything
        raise ValueError(f"{place}: the chat template refuses the prompt: {error}") from error
    return _Rendered(place=place, row=row, text=text, is_template=True)


def _tokenised(items: list[_Rendered], tokenizer: Tokenizer) -> Iterator[tuple[_Rendered, Tokens]]:
    for first in range(0, len(items), _CHUNK):
        chunk = items[first : first + _CHUNK]
        yield from zip(chunk, _tokenise(chunk, tokenizer), strict=True)


def _tokenise(items: list[_Rendered], tokenizer: Tokenizer) -> list[Tokens]:
    tokens: list[Tokens] = [np.empty(0, np.int32)] * len(items)
    for is_template in (False, True):
        chosen = [position for position, item in enumerate(items) if item.is_template is is_template]
        if chosen:
            texts = [items[position].text for position in chosen]
            encoded = tokenizer(texts, add_special_tokens=not is_template).input_ids
            for position, ids in zip(chosen, encoded, strict=True):
                tokens[position] = np.asarray(ids, np.int32)
    return tokens


def _shared_columns(prompts: Mapping[int, Prompt]) -> tuple[str, ...]:
    rows = [prompt.row for prompt in prompts.values()]
    return tuple(name for name in rows[0] if all(name in row for row in rows))


def _named_rewards(row: Row) -> tuple[str, ...]:
    """The functions that a `reward` column names. A column with other contents names none."""
    named = row.get("reward")
    if isinstance(named, str):
        return (named,)
    return tuple(named) if isinstance(named, list) and all(isinstance(name, str) for name in named) else ()
