"""Names of things. An id says what a thing is, never when it was dispatched.

    GroupId       one prompt of one source in one pass over it:  ``train:0:17``
    TrajectoryId  one response of that group:                     ``train:0:17:3:0``

``epoch`` counts passes over a source; for an evaluation set it is the version that is evaluated.
``attempt`` grows when a response is thrown away and generated again from scratch. The id keys all
randomness of a response, so neither dispatch order nor interruption changes what is sampled.
"""

from __future__ import annotations

from typing import NamedTuple, NewType, Self

Version = NewType("Version", int)
"""Number of completed optimizer steps."""

InstanceId = NewType("InstanceId", int)
"""One rollout engine replica."""


class GroupId(NamedTuple):
    source: str
    epoch: int
    prompt: int

    def __str__(self) -> str:
        return f"{self.source}:{self.epoch}:{self.prompt}"

    @classmethod
    def parse(cls, text: str) -> Self:
        source, epoch, prompt = text.rsplit(":", 2)
        return cls(source, int(epoch), int(prompt))


class TrajectoryId(NamedTuple):
    group: GroupId
    member: int
    attempt: int = 0

    def __str__(self) -> str:
        return f"{self.group}:{self.member}:{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> Self:
        group, member, attempt = text.rsplit(":", 2)
        return cls(GroupId.parse(group), int(member), int(attempt))
