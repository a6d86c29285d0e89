"""The phases room: who computes on each node group, and how the leases are numbered."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tailrace.cluster.arbitration.group_queue import GroupQueue
from tailrace.cluster.ids import JobId, NodeGroupId
from tailrace.core.run.waits import Wait


@dataclass(slots=True, kw_only=True)
class Phases:
    """State of the phases room. What is known about the phases of one job is in its record (``log.py``)."""

    queues: dict[NodeGroupId, GroupQueue]
    """Each node group has a queue of its own that decides."""
    num_leases: int = 0

    # Questions

    def hold_ends_at(self) -> float:
        """When the next hold of a group ends; infinite: nothing is held."""
        return min((at for queue in self.queues.values() if (at := queue.wake_at()) is not None), default=math.inf)

    def waits(self, now: float) -> list[Wait]:
        return [wait for queue in self.queues.values() for wait in queue.waits(now)]

    # Notices

    def group_lost(self, group: NodeGroupId, jobs: list[JobId], now: float) -> None:
        """The group cannot be used, and these jobs do not belong to it any more."""
        queue = self.queues[group]
        queue.lose(now)
        for job in jobs:
            queue.leave(job, now)
