"""A job that is planned again keeps its node group."""

from __future__ import annotations

from tailrace.cluster.groups.placement import Choice, slot_of
from tailrace.cluster.groups.seat import Seat
from tailrace.cluster.jobs.record import JobRecord
from tailrace.cluster.planning.fitting import Footprint
from tailrace.cluster.rooms import Rooms
from tailrace.cluster.settings import Policy


def stay(rooms: Rooms, job: JobRecord, seat: Seat, now: float) -> None:
    """Give the job its group back. Its slots are planned again where its phases really are; if they do not fit there,
    it keeps the old ones."""
    since, late_s = job.log.seated_at, job.log.late_s
    for choice in (_where_it_is(rooms, job, seat, now), _as_before(seat)):
        try:
            rooms.groups.seat(job, choice, now)
        except ValueError:
            continue  # not all of these slots are free
        break
    job.log.keep_place(since, late_s)


def _where_it_is(rooms: Rooms, job: JobRecord, seat: Seat, now: float) -> Choice:
    """The job's slots, such that its present phase is where it was asked for."""
    rules, is_alone = rooms.rules, not rooms.groups.named(seat.group).jobs
    if job.trace is None or job.duty > rules.max_duty or rules.policy is Policy.ISOLATED:
        return Choice(group=seat.group, is_dedicated=is_alone)
    if rules.policy is Policy.PACK:
        return Choice(group=seat.group)
    footprint = Footprint.of(job.trace, rules.slot_s)
    log = job.log
    asked_at = now if log.asked_at is None else log.asked_at
    # The phase that was asked for last belongs to this segment, or to the one before it if it is complete.
    number = (log.num_phases if log.phase is not None else log.num_phases - 1) % len(job.trace.segments)
    start = slot_of(asked_at - job.trace.segments[number].offset_s, rules)
    return Choice(group=seat.group, footprint=footprint, start_slot=start)


def _as_before(seat: Seat) -> Choice:
    if seat.reservation is None:
        return Choice(group=seat.group, is_dedicated=seat.is_dedicated)
    placed = seat.reservation.placement
    return Choice(group=seat.group, footprint=placed.footprint, start_slot=placed.start)
