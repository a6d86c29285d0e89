"""Makes texts of tokens with the package `tokenizers` alone, for processes that must not wait for Transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Detokenizer:
    """What a process needs to make texts, as a value that travels."""

    tokenizer: bytes
    """A tokenizer of the package `tokenizers`, as JSON."""

    def load(self) -> Decode:
        """A function that makes a text without special tokens."""
        from tokenizers import Tokenizer  # here: whoever only passes the value on does without the package

        tokenizer = Tokenizer.from_buffer(self.tokenizer)

        def decode(tokens: Sequence[int]) -> str:
            text: str = tokenizer.decode(tokens, skip_special_tokens=True)
            return text

        return decode
