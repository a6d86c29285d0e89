"""Each rank of an engine fetches its own part of a version, straight from the weight channel.

The ranks are processes of their own. A fetch leaves the model as it was: a rank keeps what it got until it is told to
load it. So the ranks load either all or none, and all the same version. If a version is published between their
fetches, ranks that got the older one fetch again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tailrace.core.ids import Version
from tailrace.engines.contract import FetchedByRanks
from tailrace.weights.address import ChannelAddress
from tailrace.weights.channel import VersionNotPublished, WriterLost
from tailrace.weights.puller import Puller
from tailrace.weights.sharding.table import Holding
from tailrace.weights.sources import open_source

MAX_TRIES = 100
"""Number of times that ranks may get different versions before a fetch fails."""
_PROBLEMS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (WriterLost, VersionNotPublished, FileNotFoundError)
}
"""Errors of a channel that do not end an instance, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAnswer:
    """What one rank says about its fetch."""

    version: int = 0
    num_bytes: int = 0
    problem: tuple[str, str] | None = None
    """Name and text of the error that it met."""


class RankFetcher:
    """The side of one rank."""

    def __init__(self, holding: Holding, device: torch.device) -> None:
        self._puller = Puller([holding], partial(open_source, device=device))
        self._version: Version | None = None
        self._weights: dict[str, Tensor] = {}

    def fetch(self, channel: ChannelAddress, minimum_version: Version, *, is_again: bool) -> RankAnswer:
        """Fetch the newest version. ``is_again``: only if what is here is older than the minimum."""
        if is_again and self._version is not None and self._version >= minimum_version:
            return RankAnswer(version=self._version)
        self.drop()
        try:
            self._version, [self._weights] = self._puller.pull(channel, minimum_version)
        except tuple(_PROBLEMS.values()) as error:
            kind = next(name for name, known in _PROBLEMS.items() if isinstance(error, known))
            return RankAnswer(problem=(kind, str(error)))
        return RankAnswer(version=self._version, num_bytes=self._puller.num_bytes)

    def take(self) -> Iterator[tuple[str, Tensor]]:
        """Give what was fetched away, one tensor after the other."""
        self._version = None
        while self._weights:
            name = next(iter(self._weights))
            yield name, self._weights.pop(name)

    def drop(self) -> None:
        self._version, self._weights = None, {}


def fetch_by_ranks(
    call: Callable[[str, tuple[Any, ...]], Sequence[Any]], channel: ChannelAddress, minimum_version: Version
) -> FetchedByRanks:
    """Let all ranks fetch the same version. ``call``: calls a method of all ranks and returns what each answers."""
    num_bytes, is_again = 0, False
    for _ in range(MAX_TRIES):
        answers: Sequence[RankAnswer] = call("tailrace_fetch", (channel, minimum_version, is_again))
        num_bytes += sum(answer.num_bytes for answer in answers)
        if problems := [answer.problem for answer in answers if answer.problem is not None]:
            call("tailrace_drop_fetched", ())
            kind, text = problems[0]
            raise _PROBLEMS[kind](text)
        versions = {answer.version for answer in answers}
        if len(versions) == 1:
            return FetchedByRanks(Version(versions.pop()), num_bytes)
        minimum_version, is_again = Version(max(versions)), True
    call("tailrace_drop_fetched", ())
    raise VersionNotPublished(f"the ranks of the engine got different versions, {MAX_TRIES} times")
