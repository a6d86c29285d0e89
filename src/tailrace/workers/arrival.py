"""Brings new versions into an engine: out of the channel, and then into its weights.

If the ranks of the engine can open the channel themselves, each fetches its own part. Else this process fetches the
parts of all ranks and hands them over.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, cast

import torch

from tailrace.core.ids import Version
from tailrace.engines.contract import Engine, RankedEngine
from tailrace.weights.address import OPEN_TO_ALL, ChannelAddress
from tailrace.weights.puller import Puller
from tailrace.weights.sources import open_source


class Arrived(NamedTuple):
    """A version that is here and not yet in use."""

    version: Version
    num_bytes: int
    """Bytes that were fetched."""
    load: Callable[[], None]
    """Puts it into the engine."""


class Arrivals:
    def __init__(self, engine: Engine, device: torch.device) -> None:
        self._engine = engine
        self._puller = Puller(engine.layout(), partial(open_source, device=device))

    def fetch(self, channel: ChannelAddress, minimum_version: Version) -> Arrived:
        """Fetch the newest version. The engine stays as it is, also if an error of the channel is raised."""
        if self._engine.capabilities.ranks_fetch and channel.kind in OPEN_TO_ALL:
            ranked = cast(RankedEngine, self._engine)
            version, num_bytes = ranked.fetch(channel, minimum_version)
            return Arrived(version, num_bytes, partial(ranked.load_fetched, version))
        version, weights = self._puller.pull(channel, minimum_version)
        return Arrived(version, self._puller.num_bytes, partial(self._engine.pull, weights, version))
