"""Who pays for the time of a node group, and what the group did with it.

A moment is *busy* if a job computes, moves its state or is waited for (a hold): that job pays. It is *reserved* if jobs
belong to the group but none of them uses it: they pay in equal parts. Otherwise it is free, and nobody pays.
"""

from __future__ import annotations

from collections import defaultdict

from tailrace.cluster.ids import JobId


class GroupMeter:
    def __init__(self, devices: int) -> None:
        self.devices = devices
        self.jobs: list[JobId] = []
        """Jobs that belong to the group."""
        self.busy_s = self.reserved_s = 0.0
        self.billed_s: dict[JobId, float] = defaultdict(float)
        self._until = 0.0

    def pass_time(self, now: float, user: JobId | None) -> None:
        """Note the time since the last call. ``user``: who has used the group since then."""
        seconds, self._until = now - self._until, now
        if seconds <= 0:
            return
        if user is not None:
            self.busy_s += seconds
            self.billed_s[user] += seconds
        elif self.jobs:
            self.reserved_s += seconds
            for job in self.jobs:
                self.billed_s[job] += seconds / len(self.jobs)
