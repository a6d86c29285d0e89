"""What must hold in the jobs room between two events."""

from __future__ import annotations

from tailrace.cluster.jobs.record import Stage
from tailrace.cluster.rooms import Rooms


def check(rooms: Rooms) -> None:
    jobs = rooms.jobs
    for job in jobs.records.values():
        assert (job.id in jobs.queue) == (job.stage is Stage.QUEUED), f"{job.id} is {job.stage}, its queue differs"
    assert set(jobs.running) == {job.id for job in jobs.records.values() if job.is_live}
