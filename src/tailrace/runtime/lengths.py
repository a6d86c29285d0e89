"""Whether the longest prompt of each source, with its response, fits into the model's positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tailrace.store.positions import Positions


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLength:
    """The lengths of one source of prompts, in tokens."""

    source: str
    longest_prompt: int
    """Length of the longest prompt that is used."""
    response: int
    """Most tokens of a response."""
    setting: str
    """The setting that says how long a response may be."""

    @property
    def total(self) -> int:
        return self.longest_prompt + self.response


def longest(lengths: Sequence[SourceLength]) -> int:
    """Most tokens of a prompt with its response, over all sources."""
    return max(length.total for length in lengths)


def refused_lengths(lengths: Sequence[SourceLength], positions: Positions | None) -> Iterator[str]:
    """One sentence for each source whose responses outgrow the model. ``positions``: None if it has no limit."""
    for length in lengths:
        if positions is not None and length.total > positions.count:
            yield (
                f"the model has {positions.count} positions ({positions.how}), but the longest prompt of"
                f" '{length.source}' has {length.longest_prompt} tokens and {length.setting} is {length.response}:"
                f" {length.total} together; {_remedy(length, positions.count)}"
            )


def _remedy(length: SourceLength, count: int) -> str:
    shorter = "set data.max_prompt_length lower, which leaves out longer prompts"
    if length.longest_prompt >= count:
        return shorter
    return f"set {length.setting} to at most {count - length.longest_prompt}, or {shorter}"


def length_lines(lengths: Sequence[SourceLength], positions: Positions | None) -> list[str]:
    """Each source's lengths beside the model's positions, in words."""
    limit = "the model has no limit" if positions is None else f"the model has {positions.count:,} ({positions.how})"
    return [
        f"positions: '{length.source}' needs at most {length.total:,}, {length.longest_prompt:,} for its longest prompt"
        f" and {length.response:,} for the response; {limit}"
        for length in lengths
    ]
