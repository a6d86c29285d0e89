"""What must hold in the jobs room between two events."""

from __future__ import annotations

from tailrace.cluster.jobs.record import Stage
from tailrace.cluster.rooms import Rooms


def check(rooms: Rooms) -> None:
    jobs = rooms.jobs
    assert set(jobs.queue) == {job.id for job in jobs.records.values() if job.stage is Stage.QUEUED}
    assert set(jobs.running) == {job.id for job in jobs.records.values() if job.is_live}
