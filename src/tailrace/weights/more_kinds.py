"""Kinds of weight channels that a runtime adds, because only it can import what they are made of.

A runtime that has such a kind fills this table in each of its worker processes, before the worker begins. Importing
this needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.weights.channel import WeightSink, WeightSource
    from tailrace.weights.sharding.layout import WeightLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelMaker:
    create: Callable[[str, WeightLayout], WeightSink]
    """Makes the channel of the run with this name."""
    open: Callable[[str], WeightSource]
    """Opens the location of a ``ChannelAddress`` of this kind."""


MORE_KINDS: dict[str, ChannelMaker] = {}
"""By the kind of their addresses."""
