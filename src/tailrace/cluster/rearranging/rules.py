"""Jobs are planned again: after their first clean period, and when they have drifted.

A job is planned again only between two phases. One that had a group to itself only because nobody knew its demand
joins others, if it fits beside them: a whole group becomes free. If it stays, others may join it from then on. Any
other job moves only if another group is better by a margin, and what it waited in its old place does not count in the
new one, so two jobs do not change places for ever.
"""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.cluster import commands as do
from tailrace.cluster.admission.claims import move_claims
from tailrace.cluster.demand.trace import DemandTrace
from tailrace.cluster.groups.placement import Choice, choose
from tailrace.cluster.groups.record import GroupRecord
from tailrace.cluster.groups.seat import Seat
from tailrace.cluster.groups.seating import leave_seat
from tailrace.cluster.jobs.record import JobRecord
from tailrace.cluster.phases import leases
from tailrace.cluster.planning.interference import interference
from tailrace.cluster.rearranging.room import limits_of
from tailrace.cluster.rearranging.staying import stay
from tailrace.cluster.rooms import Rooms


def refit(rooms: Rooms, now: float) -> Iterator[do.Command]:
    """Plan jobs again that were profiled or have drifted, if they are between two phases."""
    waiting = rooms.rearranging.to_refit
    for name in sorted(waiting):
        job = rooms.jobs.find_live(name)
        if job is None or job.seat is None:
            waiting.discard(name)
        elif not job.log.is_computing:
            waiting.discard(name)
            if job.drift.has_drifted(limits_of(rooms.rules)):
                _learn(rooms, job, job.seat)
            yield from _refit(rooms, job, job.seat, now)


def _learn(rooms: Rooms, job: JobRecord, seat: Seat) -> None:
    """What was measured of the job counts from now on."""
    assert job.trace is not None
    limits, plan = limits_of(rooms.rules), job.trace
    forecast = job.drift.forecast(plan, limits)
    rooms.jobs.learn(job, forecast)
    rooms.groups.recount(seat.group)
    job.drift.learned(is_other=_differs(plan, forecast, limits.share / 2), limits=limits)


def _differs(plan: DemandTrace, forecast: DemandTrace, share: float) -> bool:
    """Whether the period or the duration of a phase is another one, by more than this share of it."""
    pairs = [(plan.period_s, forecast.period_s)]
    pairs += [(one.duration_s, other.duration_s) for one, other in zip(plan.segments, forecast.segments, strict=True)]
    return any(abs(seen_s - planned_s) > share * planned_s for planned_s, seen_s in pairs)


def _refit(rooms: Rooms, job: JobRecord, seat: Seat, now: float) -> Iterator[do.Command]:
    if seat.is_dedicated and (moves := list(join_others(rooms, job, now))):
        yield from moves
        return
    before = _interference(rooms, job, now)
    old = leave_seat(rooms, job)
    assert old is not None
    choice = None if seat.is_dedicated else _less_disturbed(rooms, job, before, now)
    if choice is None or choice.group == old.id:
        stay(rooms, job, seat, now)
    else:
        yield from _move(rooms, job, old, choice, now)


def join_others(rooms: Rooms, job: JobRecord, now: float) -> Iterator[do.Command]:
    """Move a job that is alone on its group to one that others use, if it fits there. Its own group is empty then."""
    assert job.seat is not None
    old = rooms.groups.named(job.seat.group)
    choice = _beside_others(rooms, job, old, now)
    if choice is not None:
        leave_seat(rooms, job)
        move_claims(rooms, choice.group, old.id)
        yield from _move(rooms, job, old, choice, now)


def _move(rooms: Rooms, job: JobRecord, old: GroupRecord, choice: Choice, now: float) -> Iterator[do.Command]:
    rooms.groups.seat(job, choice, now)
    job.drift.forget_pauses()
    yield do.Move(job=job.id, source=old.id, target=choice.group, shift_s=choice.shift_s)
    yield from leases.leave(rooms, old, job.id, now)
    yield from leases.ask(rooms, job, now)


def _beside_others(rooms: Rooms, job: JobRecord, old: GroupRecord, now: float) -> Choice | None:
    """The best place on a group that others use, for a job that leaves its group empty.

    It may be a group that a waiting job has claimed, if that one can have the empty group instead: it is free earlier.
    """
    kept = {group for name, group in rooms.admission.all_claims() if not old.can_hold(rooms.jobs.named(name).spec)}
    taking = rooms.groups.taking(job, rooms.rules, now, without=kept)
    used = [group for group in taking if group.jobs and group is not old]
    return choose(job, used, rooms.groups.timetable, rooms.rules, now)


def _less_disturbed(rooms: Rooms, job: JobRecord, before: float, now: float) -> Choice | None:
    """The best place, if the job suffers enough less from others there than ``before``."""
    groups = rooms.groups.taking(job, rooms.rules, now, without=rooms.admission.claimed_by_others(job.id))
    choice = choose(job, groups, rooms.groups.timetable, rooms.rules, now)
    return choice if choice is not None and before - choice.interference >= rooms.rules.min_gain else None


def _interference(rooms: Rooms, job: JobRecord, now: float) -> float:
    """What the job suffers from the others of its group, as it is planned and as it was seen."""
    assert job.seat is not None
    if job.seat.reservation is None:
        return job.wait_share(now)
    placed = job.seat.reservation.placement
    others = (other for other in rooms.groups.timetable.residents(job.seat.group) if other is not placed)
    guard = round(rooms.rules.guard_s / rooms.rules.slot_s)
    return max(interference(placed, others, guard), job.wait_share(now))
