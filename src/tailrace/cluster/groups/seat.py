"""A job's place on a node group."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.cluster.ids import NodeGroupId
from tailrace.cluster.planning.timetable import Reservation


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    group: NodeGroupId
    is_dedicated: bool
    reservation: Reservation | None = None
    """Its slots in the timetable; None: its phases are not planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Displaced:
    """Where a job was when its node group was lost."""

    group: NodeGroupId
    at: float
