"""Whether the longest prompt of each source, with its response, fits into the model's positions. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tailrace.config.objection import Objection
from tailrace.config.rules import TRAIN_SOURCE
from tailrace.config.settings import Settings
from tailrace.store.positions import Positions


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLength:
    """The lengths of one source of prompts, in tokens."""

    source: str
    longest_prompt: int | None
    """Length of the longest prompt that is used; None: the prompts are not known."""
    response: int
    """Most tokens of a response."""
    setting: str
    """The setting that says how long a response may be."""

    @property
    def total(self) -> int:
        """Most tokens of a prompt with its response. A prompt that is not known has at least one."""
        return (self.longest_prompt or 1) + self.response


def source_lengths(settings: Settings, longest_prompts: Mapping[str, int] | None = None) -> tuple[SourceLength, ...]:
    """The sources that the run uses. ``longest_prompts``: length of the longest prompt of each, if they are known."""

    def of(source: str, response: int, setting: str) -> SourceLength:
        longest = None if longest_prompts is None else longest_prompts[source]
        return SourceLength(source=source, longest_prompt=longest, response=response, setting=setting)

    name, most = "rollout.max_response_length", settings.rollout.max_response_length
    found = [of(TRAIN_SOURCE, most, name)]
    for each in settings.eval if settings.eval_interval is not None else ():
        if each.max_response_length is None:
            found.append(of(each.name, most, name))
        else:
            found.append(of(each.name, each.max_response_length, f"max_response_length of [[eval]] '{each.name}'"))
    return tuple(found)


def longest(lengths: Sequence[SourceLength]) -> int:
    """Most tokens of a prompt with its response, over all sources."""
    return max(length.total for length in lengths)


def refused_lengths(lengths: Sequence[SourceLength], positions: Positions | None) -> Iterator[Objection]:
    """Object to each source whose responses outgrow the model. ``positions``: None if it has no limit."""
    for length in lengths:
        if positions is None or length.total <= positions.count:
            continue
        has = f"the model has {positions.count} positions ({positions.how})"
        if length.longest_prompt is None:
            problem = f"{has}, but {length.setting} is {length.response}, which leaves none for a prompt"
            yield Objection(problem, "set it lower")
        else:
            yield Objection(
                f"{has}, but the longest prompt of '{length.source}' has {length.longest_prompt} tokens and"
                f" {length.setting} is {length.response}: {length.total} together",
                _remedy(length.setting, positions.count - length.longest_prompt),
                frozenset({length.source} - {TRAIN_SOURCE}),
            )


def _remedy(setting: str, left: int) -> str:
    shorter = "set data.max_prompt_length lower, which leaves out longer prompts"
    return f"set {setting} to at most {left}, or {shorter}" if left > 0 else shorter


def length_lines(lengths: Sequence[SourceLength], positions: Positions | None) -> list[str]:
    """The model's positions, and what each source needs of them, in words."""
    if positions is None:
        return ["positions: the model names no limit"]
    title = f"positions: the model has {positions.count:,} ({positions.how})"
    return [title, *(f"  {_needs(length, positions.count)}" for length in lengths)]


def _needs(length: SourceLength, count: int) -> str:
    if length.longest_prompt is None:
        return f"{length.source}: a prompt may have at most {count - length.response:,} tokens"
    return (
        f"{length.source}: at most {length.total:,} are used, {length.longest_prompt:,} by the longest prompt and"
        f" {length.response:,} by the response"
    )
