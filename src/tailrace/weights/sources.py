"""Opens a channel address. A new kind of channel adds its line here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tailrace.weights.address import SHARED_MEMORY, ChannelAddress
from tailrace.weights.channel import WeightSource
from tailrace.weights.shared_memory import WeightReader

_OPENERS: dict[str, Callable[[str], WeightSource]] = {
    SHARED_MEMORY: lambda location: WeightReader.open(Path(location)),
}


def open_source(address: ChannelAddress) -> WeightSource:
    opener = _OPENERS.get(address.kind)
    if opener is None:
        known = ", ".join(_OPENERS)
        raise ValueError(f"cannot open a weight channel of kind {address.kind!r}; known kinds: {known}")
    return opener(address.location)
