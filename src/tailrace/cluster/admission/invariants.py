"""What must hold in the admission room between two events."""

from __future__ import annotations

from tailrace.cluster.rooms import Rooms


def check(rooms: Rooms) -> None:
    admission = rooms.admission
    taken = sum(job.spec.rollout_devices for job in rooms.jobs.live())
    free = admission.num_rollout_devices - taken
    assert admission.free_rollout_devices == free >= 0, "rollout devices are miscounted"
    assert set(admission.claims) <= {job.id for job in rooms.jobs.every() if job.seat is None}
