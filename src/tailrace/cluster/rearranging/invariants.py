"""What must hold in the rearranging room between two events."""

from __future__ import annotations

from tailrace.cluster.rearranging.room import limits_of
from tailrace.cluster.rooms import Rooms


def check(rooms: Rooms) -> None:
    limits = limits_of(rooms.rules)
    for name in rooms.rearranging.to_refit:
        job = rooms.jobs.find_live(name)
        assert job is not None, f"{name} is to be planned again, and does not run"
        assert job.log.is_computing, f"{name} is between two phases, and is not planned again"
    for job in rooms.jobs.every():
        seen = job.drift.measured
        assert len(seen.periods) <= limits.num_kept, f"{len(seen.periods)} periods of {job.id} are remembered"
        assert job.trace is not None or not seen.periods, f"{job.id} is measured without a plan"
