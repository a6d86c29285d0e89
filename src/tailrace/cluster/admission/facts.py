"""What becomes possible only because time passes."""

from __future__ import annotations

from tailrace.cluster.groups.seating import open_group
from tailrace.cluster.rooms import Rooms


def pass_time(rooms: Rooms, now: float) -> None:
    """Groups open because their jobs have waited for a smaller share of their time, and the order of admission
    changes."""
    for group in rooms.groups.open_by_now(now):
        open_group(rooms, group)
    if rooms.admission.order_changes_at <= now:
        rooms.admission.look_again()
