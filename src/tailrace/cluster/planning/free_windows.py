"""How finely the free time of a node group is divided.

Jobs of a group never meet, so every use ends at a free window, unless another use begins just there. Counted per slot,
because the pattern of a whole group may take long to repeat.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tailrace.cluster.planning.fitting import PlacedFootprint

_DIGITS = 12
"""So that groups whose jobs are alike compare equal, in whatever order their shares are added."""


def windows_per_slot(placed: Sequence[PlacedFootprint]) -> float:
    """Mean number of free windows per slot of a group with these jobs."""
    uses = math.fsum(len(each.footprint.segments) / each.footprint.period for each in placed)
    return round(uses - math.fsum(_joints(one, other) for one in placed for other in placed), _DIGITS)


def _joints(one: PlacedFootprint, other: PlacedFootprint) -> float:
    """How often per slot a use of the other job begins just where one of the first ends."""
    period, other_period = one.footprint.period, other.footprint.period
    common, number = math.gcd(period, other_period), 0
    for segment in one.footprint.segments:
        distance = one.start + segment.end - other.start
        for following in other.footprint.segments:
            number += not (distance - following.offset) % common
    return number * common / (period * other_period)
