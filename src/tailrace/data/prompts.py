"""A set of prompts, read, rendered, tokenised and filtered before any work starts.

* A prompt's index is the number of its row in the file, from 0: it names the same row whatever is filtered.
* A string is tokenised the way its tokenizer does by default; a rendered chat template without further special
  tokens, since the template writes its own.
* Prompts of more than `max_prompt_length` tokens are left out and counted. A set without a usable prompt is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np

from tailrace.config.settings import DataSettings
from tailrace.data.rows import Row, read_rows
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
    """As it was read, for rewards."""
    text: str
    """As the model sees it."""
    tokens: Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    name: str
    path: str
    prompts: Mapping[int, Prompt]
    """By index, in the order of the file."""
    columns: tuple[str, ...]
    """Those that every usable row has."""
    num_filtered: int
    """Rows left out because they were too long."""

    @classmethod
    def load(
        cls, name: str, path: str, tokenizer: Tokenizer, settings: DataSettings, *, max_prompts: int | None = None
    ) -> Self:
        """Read at most the first `max_prompts` usable prompts of a file."""
        rendered = [_render(row, place, tokenizer, settings) for place, row in read_rows(path)]
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
            prompts[index] = Prompt(index=index, row=item.row, text=item.text, tokens=tokens)
        if not prompts:
            raise ValueError(_nothing_usable(path, len(rendered), settings.max_prompt_length))
        return cls(name=name, path=path, prompts=prompts, columns=_shared_columns(prompts), num_filtered=num_filtered)

    def fingerprint(self) -> str:
        """Differs whenever a prompt, its place or what a reward sees of it differs."""
        digest = hashlib.sha256()
        for prompt in self.prompts.values():
            row = json.dumps(prompt.row, sort_keys=True, default=str)
            digest.update(f"{prompt.index}\0{prompt.tokens.tolist()}\0{row}\n".encode())
        return digest.hexdigest()

    @property
    def indices(self) -> tuple[int, ...]:
        return tuple(self.prompts)

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
        raise ValueError(f"{place}: the prompt needs a chat template, and the model's tokenizer has none")
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


def _nothing_usable(path: str, num_rows: int, max_prompt_length: int) -> str:
    if not num_rows:
        return f"{path} holds no prompts"
    return f"{path}: all {num_rows} prompts are longer than data.max_prompt_length = {max_prompt_length} tokens"
