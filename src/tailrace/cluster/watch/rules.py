"""When the scheduler must be woken, if nothing happens before. Decided once, after all other rules."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tailrace.cluster import commands as do
from tailrace.cluster.rooms import Rooms


def wake(rooms: Rooms, now: float) -> Iterator[do.Command]:
    at = min(rooms.groups.next_opening_at(), rooms.admission.order_changes_at, rooms.phases.hold_ends_at())
    if at < math.inf and at != rooms.watch.wake_at:
        rooms.watch.wake_at = at
        yield do.Wake(at=max(at, now))
