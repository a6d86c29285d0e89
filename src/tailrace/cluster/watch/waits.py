"""What each job waits for, since when and until when, as a person would say it.

The limit of a wait for a place is a forecast: when the job will have one if all jobs keep their present pace. It is
infinite if that is not known.
"""

from __future__ import annotations

import math

from tailrace.cluster.admission.heads import Head, head_of
from tailrace.cluster.admission.order import in_order
from tailrace.cluster.jobs.record import JobRecord
from tailrace.cluster.rooms import Rooms
from tailrace.core.run.waits import Wait


def waits(rooms: Rooms, now: float) -> list[Wait]:
    found: list[Wait] = []
    heads: dict[int, Head] = {}
    for job in [*rooms.jobs.displaced(), *in_order(rooms, now)]:
        size = job.spec.train_devices
        if size not in heads:
            heads[size] = head_of(rooms, job, now)
        found.append(_wait_for_place(rooms, job, heads[size]))
    return found + rooms.phases.waits(now)


def _wait_for_place(rooms: Rooms, job: JobRecord, head: Head) -> Wait:
    since = job.submitted_at if job.displaced is None else job.displaced.at
    why = "" if job.displaced is None else f", because {job.displaced.group} was lost"
    if head.job is not job:
        return Wait(what=f"job {job.id}: its turn behind {head.job.id}{why}", since=since, limit_s=math.inf)
    what = f"room on a node group of {job.spec.train_devices} devices"
    if head.group is not None:
        what += f", on {head.group}"
        if rooms.groups.is_opening_awaited(head.group):
            what += ", whose jobs have waited for too much of their time"
    if not job.is_live and job.spec.rollout_devices > rooms.admission.free_rollout_devices:
        what += f", and {job.spec.rollout_devices} rollout devices ({rooms.admission.free_rollout_devices} are free)"
    return Wait(what=f"job {job.id}: {what}{why}", since=since, limit_s=max(0.0, head.at - since))
