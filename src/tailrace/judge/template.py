"""The text that a judge reads about a response: a template with fields, as tokens of the judge's tokenizer.

    Question: {prompt}
    Reference: {answer}
    Answer: {response}
    Is the answer right? Say yes or no.

* A field is a name in braces. Other braces are text.
* What a field holds cannot become part of the template: it is not searched for fields, and special tokens in it
  (``<|im_end|>``) are read as the characters they are written with. A response cannot end its own turn.
* Template and fields become tokens piece by piece, so the tokens of a piece do not depend on its neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FIELD = re.compile(r"\{([A-Za-z_]\w*)\}")
_MARK = "\x00"
"""Stands on both sides of a field's name while the chat template is applied: no text of its own has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeTemplate:
    user: str
    """What the judge is asked. In chat form, the user's turn."""
    assistant: str = ""
    """Text behind it. In chat form, the assistant's turn: what a reward model with a head judges."""
    is_chat: bool = True
    """Whether the chat template of the judge's tokenizer is applied. Without: the texts as they are."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields, each once."""
        return tuple(dict.fromkeys(_FIELD.findall(self.user + self.assistant)))

    def filled(self, fields: Mapping[str, str]) -> tuple[str, str]:
        """The user's and the assistant's text with their fields filled in. ``KeyError`` if a field is missing."""
        user, assistant = (_FIELD.sub(lambda found: fields[found[1]], text) for text in (self.user, self.assistant))
        return user, assistant

    def missing(self, columns: Sequence[str]) -> list[str]:
        """Fields that no column fills."""
        return [name for name in self.fields if name not in columns]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerWord:
    word: str
    """One token of the judge's tokenizer."""
    value: float
    """The score of a response to which the judge answers with this word."""


YES_OR_NO = (AnswerWord(word="yes", value=1.0), AnswerWord(word="no", value=0.0))


class TemplateReader:
    """Makes the tokens of a template and its fields. ``tokenizer``: of the judge, from Transformers."""

    def __init__(self, template: JudgeTemplate, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        pieces = _pieces(template, tokenizer)
        self._texts = [self._encode(text, is_template=True) for text in pieces[::2]]
        self._names = pieces[1::2]
        # A chat template writes the first token itself; a plain text gets it as any text of this tokenizer does.
        start = [] if template.is_chat else list(tokenizer("").input_ids)
        self._texts[0] = start + self._texts[0]

    def tokens(self, fields: Mapping[str, str]) -> NDArray[np.int32]:
        """``KeyError`` if a field is missing."""
        found = list(self._texts[0])
        for name, text in zip(self._names, self._texts[1:], strict=True):
            found += self._encode(fields[name], is_template=False)
            found += text
        return np.array(found, np.int32)

    def _encode(self, text: str, *, is_template: bool) -> list[int]:
        if not text:
            return []
        encoded = self._tokenizer(text, add_special_tokens=False, split_special_tokens=not is_template)
        return list(encoded.input_ids)


def _pieces(template: JudgeTemplate, tokenizer: Any) -> list[str]:
    """Text, field, text, field, ..., text."""
    user, assistant = (_FIELD.sub(rf"{_MARK}\1{_MARK}", text) for text in (template.user, template.assistant))
    if not template.is_chat:
        return (user + assistant).split(_MARK)
    if not tokenizer.chat_template:
        raise ValueError("the judge's tokenizer has no chat template: set is_chat to false, or choose another model")
    turns = [{"role": "user", "content": user}]
    if assistant:
        turns.append({"role": "assistant", "content": assistant})
    text: str = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=not assistant)
    pieces = text.split(_MARK)
    if sorted(pieces[1::2]) != sorted(_FIELD.findall(template.user + template.assistant)):
        raise ValueError("the chat template of the judge's tokenizer leaves out fields, or repeats them")
    return pieces


def answer_tokens(words: Sequence[str], tokenizer: Any) -> NDArray[np.int32]:
    """The token of each answer word. ``ValueError`` if a word is not one token, or two words are the same one."""
    found = []
    for word in words:
        tokens = tokenizer(word, add_special_tokens=False).input_ids
        if len(tokens) != 1:
            parts = [tokenizer.decode([token]) for token in tokens]
            raise ValueError(f"the answer word {word!r} must be one token of the judge's tokenizer; it is {parts}")
        found.append(tokens[0])
    if len(set(found)) < len(found):
        raise ValueError(f"the answer words {list(words)} must be different tokens; they are {found}")
    return np.array(found, np.int32)
