"""The admission room: rollout devices, claims of jobs that wait for a place, and whose turn it is."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from tailrace.cluster.arbitration.fair_share import FairShare
from tailrace.cluster.groups.openings import NEVER
from tailrace.cluster.ids import JobId, NodeGroupId
from tailrace.cluster.jobs.record import Needs


@dataclass(slots=True, kw_only=True)
class Admission:
    """State of the admission room."""

    num_rollout_devices: int
    free_rollout_devices: int
    shares: FairShare
    """Which tenant's job is admitted next (``order.py``)."""
    order_changes_at: float = math.inf
    """When another order of admission begins, only because time passes."""
    is_changed: bool = True
    """Whether a job might get a place that it could not have when this was last looked at."""
    claims: dict[JobId, NodeGroupId] = field(default_factory=dict)
    """The group that a waiting job has claimed (``rules.py``)."""
    promises: dict[JobId, float] = field(default_factory=dict)
    """When a job with a claim was expected to start, the earliest time that was ever forecast for it."""
    searched: dict[Needs, int] = field(default_factory=dict)
    """The newest opening that there was when no group without a claim had room for a job with these needs."""

    # Questions

    def has_devices(self, count: int) -> bool:
        return count <= self.free_rollout_devices

    def all_claims(self) -> list[tuple[JobId, NodeGroupId]]:
        """Every job with a claim, and its group, the oldest claim first."""
        return list(self.claims.items())

    def claimants(self, group: NodeGroupId) -> list[JobId]:
        return [job for job, claimed in self.claims.items() if claimed == group]

    def claimed_by_others(self, job: JobId) -> Collection[NodeGroupId]:
        return {group for name, group in self.claims.items() if name != job}

    def last_search(self, needs: Needs) -> int:
        """The newest opening that a job with these needs has looked at."""
        return self.searched.get(needs, NEVER)

    # Notices

    def look_again(self) -> None:
        """A job might get a place that it could not have before."""
        self.is_changed = True

    def begin_looking(self) -> bool:
        """Whether there is reason to look for places. From now on only what happens later is one."""
        was_changed, self.is_changed = self.is_changed, False
        return was_changed

    def take_devices(self, count: int) -> None:
        self.free_rollout_devices -= count

    def give_back_devices(self, count: int) -> None:
        self.free_rollout_devices += count

    def forget_claim(self, job: JobId) -> NodeGroupId | None:
        """Returns the group that the job had claimed, if any."""
        self.promises.pop(job, None)
        return self.claims.pop(job, None)

    def forget_searches(self, still_waiting: Collection[Needs]) -> None:
        """Forget the searches of jobs that do not wait any more."""
        self.searched = {needs: newest for needs, newest in self.searched.items() if needs in still_waiting}
