"""Ids of groups, responses, versions and instances. An id never depends on when or where something was dispatched.

    GroupId       one prompt of one source in one pass over it:  ``train:0:17``
    ResponseId    one response of that group:                    ``train:0:17:3:0``

``epoch`` counts passes over a source; for an evaluation set it is the version that is evaluated.
``attempt`` increases by 1 when a response is dropped and generated again from its prompt. The id keys all
randomness of a response, so neither dispatch order nor interruption changes the sampled tokens.
"""

from __future__ import annotations

from typing import NamedTuple, NewType, Self

Version = NewType("Version", int)
"""Number of completed optimizer steps."""

InstanceId = NewType("InstanceId", int)
"""One rollout engine replica."""


class GroupId(NamedTuple):
    """One prompt of one source in one pass over it."""

    source: str
    epoch: int
    prompt: int

    def __str__(self) -> str:
        return f"{self.source}:{self.epoch}:{self.prompt}"

    @classmethod
    def parse(cls, text: str) -> Self:
        source, epoch, prompt = text.rsplit(":", 2)
        return cls(source, int(epoch), int(prompt))


class ResponseId(NamedTuple):
    """One response of a group."""

    group: GroupId
    member: int
    attempt: int = 0

    def __str__(self) -> str:
        return f"{self.group}:{self.member}:{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> Self:
        group, member, attempt = text.rsplit(":", 2)
        return cls(GroupId.parse(group), int(member), int(attempt))
