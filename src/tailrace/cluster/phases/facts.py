"""Events of the phases room: phases asked for and ended, state loaded and offloaded, holds that end."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster.job_spec import JobSpec, in_order
from tailrace.cluster.phases.leases import ask, noted, queue_of
from tailrace.cluster.rooms import Rooms


def phase_asked(rooms: Rooms, event: ev.PhaseAsked, now: float) -> Iterator[do.Command]:
    job = rooms.jobs.find(event.job)
    if job is None or not job.is_live or job.log.phase is not None or not _is_sound(event, job.spec):
        rooms.watch.ignore()
        return
    parts = job.spec.device_parts if event.parts is None else in_order(event.parts)
    job.log.ask(event.operations_s, event.slack_s, now, parts=parts, number=job.segment_number)
    yield from ask(rooms, job, now)


def _is_sound(event: ev.PhaseAsked, job: JobSpec) -> bool:
    numbers = (*event.operations_s, event.slack_s)
    has_parts = event.parts is None or (bool(event.parts) and set(event.parts) <= set(job.device_parts))
    is_finite = all(math.isfinite(number) and number >= 0 for number in numbers)
    return bool(event.operations_s) and has_parts and is_finite


def phase_ended(rooms: Rooms, event: ev.PhaseEnded, now: float) -> Iterator[do.Command]:
    job = rooms.jobs.find(event.job)
    phase = None if job is None else job.log.phase
    if job is None or job.seat is None or phase is None or phase.lease is None:
        rooms.watch.ignore()
        return
    if event.lease not in (0, phase.lease):
        rooms.watch.ignore()
        return
    job.log.end_lease(event.seconds, failed=event.failed)
    # After a failure, and between two operations, a job usually asks again at once.
    asks_at_once = event.next_in_s is None and (event.failed or job.log.is_between_operations)
    job.log.foretell(0.0 if asks_at_once else event.next_in_s, now)
    if not job.log.is_between_operations:
        if event.failed:
            rooms.rearranging.phase_failed(job)
        else:
            rooms.rearranging.phase_completed(job, rooms.rules)
        job.log.end_phase(failed=event.failed)
    queue = queue_of(rooms, rooms.groups.named(job.seat.group), now)
    yield from noted(rooms, queue.ended(job.id, event.seconds, event.failed, event.next_in_s, now), now)


def transfer_measured(rooms: Rooms, event: ev.TransferMeasured, now: float) -> Iterator[do.Command]:
    group = rooms.groups.find(event.group)
    if group is None:
        rooms.watch.ignore()
        return
    yield from noted(rooms, queue_of(rooms, group, now).transferred(event, now), now)


def time_passed(rooms: Rooms, event: ev.TimePassed, now: float) -> Iterator[do.Command]:
    """Holds that are over end."""
    for name, queue in rooms.phases.queues.items():
        at = queue.wake_at()
        if at is not None and at <= now:
            group = rooms.groups.named(name)
            yield from noted(rooms, queue_of(rooms, group, now).tick(now), now)
