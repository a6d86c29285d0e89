"""Which instances are lent: whole places, the least busy first."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.core.fleet.scaling import ScalingView
from tailrace.core.ids import InstanceId


def least_busy(view: ScalingView, share: float) -> Sequence[InstanceId]:
    """Return the instances of the places with the fewest tokens, at most ``share`` of all instances. At least one
    instance that accepts work is left."""
    lent: list[InstanceId] = []
    for place in sorted(view.places, key=lambda place: (place.num_tokens, place.instances)):
        more = [*lent, *place.instances]
        if len(more) <= share * view.num_instances and view.ready_without(more):
            lent = more
    return lent
