"""What each job waits for, since when and until when at most, as a person would say it."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.cluster.admission import ReservedStart, in_order, reserved_start
from tailrace.cluster.job_record import JobRecord
from tailrace.cluster.state import ClusterState
from tailrace.core.run.waits import Wait


def waits(state: ClusterState, now: float) -> list[Wait]:
    found = [_queued(state, reserved_start(state, job, now)) for job in in_order(state, now)]
    for job in state.live():
        if job.displaced is not None:
            found.append(
                Wait(
                    what=f"job {job.id}: a node group with room, because {job.displaced.group} was lost",
                    since=job.displaced.at,
                    limit_s=float("inf"),
                )
            )
    for group in state.groups.values():
        found += group.queue.waits(now)
    return found


def _queued(state: ClusterState, start: ReservedStart) -> Wait:
    job = start.job
    return Wait(
        what=f"job {job.id}: {' and '.join(_lacking(state, job, start))}",
        since=job.submitted_at,
        limit_s=max(0.0, start.at - job.submitted_at),
    )


def _lacking(state: ClusterState, job: JobRecord, start: ReservedStart) -> Iterator[str]:
    if start.group is not None:
        yield f"room on a node group of {job.spec.train_devices} devices, probably {start.group}"
    if job.spec.rollout_devices > state.free_rollout_devices:
        yield f"{job.spec.rollout_devices} rollout devices, {state.free_rollout_devices} are free"
    elif start.group is None:
        yield "its turn, jobs that came earlier wait for the same"
