"""Jobs lose their node group, or are planned again: after their first clean period, and when they have drifted.

A job is planned again only between two phases. One that had a group to itself only because nobody knew its demand
joins others, if it fits beside them: a whole group becomes free. If it stays, others may join it from then on. Any
other job moves only if another group is better by a margin, and what it waited in its old place does not count in the
new one, so two jobs do not change places for ever.
"""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster import phases
from tailrace.cluster.demand.trace import DemandTrace, Segment
from tailrace.cluster.group_record import GroupRecord, fits
from tailrace.cluster.job_record import Displaced, JobRecord, Seat
from tailrace.cluster.jobs import Stage
from tailrace.cluster.placement import Choice, choose, slot_of
from tailrace.cluster.planning.fitting import Footprint
from tailrace.cluster.planning.interference import interference
from tailrace.cluster.rules import Policy
from tailrace.cluster.state import ClusterState


def node_lost(state: ClusterState, event: ev.NodeLost, now: float) -> Iterator[do.Command]:
    """The node's group cannot be used. Its jobs lose the phase that they were in, and need another group."""
    group = _group_of(state, event)
    if group is None or event.node in group.lost:
        state.num_ignored += 1
        return
    was_usable = group.is_usable
    group.lost.add(event.node)
    for job in [job for job, claimed in state.claims.items() if claimed == group.id]:
        state.drop_claim(job)
        state.is_changed = True  # it claims another group
    if not was_usable:
        return
    group.queue.lose(now)
    for resident in list(group.jobs.values()):
        state.unseat(resident)
        group.queue.leave(resident.id, now)
        resident.displaced = Displaced(group=group.id, at=now)
        resident.withdraw_lease()
    state.timetable.lose(group.id)
    yield from ()


def node_returned(state: ClusterState, event: ev.NodeReturned, now: float) -> Iterator[do.Command]:
    group = _group_of(state, event)
    if group is None or event.node not in group.lost:
        state.num_ignored += 1
        return
    group.lost.discard(event.node)
    if group.is_usable:
        state.open(group.id)
        state.timetable.restore(group.id)
        yield from phases.noted(state, group.queue.restore(now), now)


def job_profiled(state: ClusterState, event: ev.JobProfiled, now: float) -> Iterator[do.Command]:
    """The demand of a job is known now, or known better."""
    job = state.jobs.get(event.job)
    if job is None or job.stage is Stage.ENDED or job.trace == event.trace:
        state.num_ignored += 1
        return
    job.trace, job.num_drifted, job.ratios = event.trace, 0, []
    state.is_changed = True
    if job.stage is Stage.PROFILING:
        job.stage = Stage.RUNNING
    if job.is_live:
        state.to_refit.add(job.id)
    if job.seat is not None:
        state.groups[job.seat.group].count()
        state.open(job.seat.group)  # it may need less of its group than was believed
    yield from ()


def refit(state: ClusterState, now: float) -> Iterator[do.Command]:
    """Plan jobs again that were profiled or have drifted, if they are between two phases."""
    for name in sorted(state.to_refit):
        job = state.running.get(name)
        if job is None or job.seat is None:
            state.to_refit.discard(name)
        elif job.phase is None or job.phase.lease is None:
            state.to_refit.discard(name)
            if job.num_drifted >= state.rules.drift_cycles:
                job.trace, job.num_drifted, job.ratios = _observed(job), 0, []
                state.groups[job.seat.group].count()
                job.give_rest(state.rules.drift_cycles)
            yield from _refit(state, job, job.seat, now)


def _refit(state: ClusterState, job: JobRecord, seat: Seat, now: float) -> Iterator[do.Command]:
    if seat.is_dedicated and (moves := list(join_others(state, job, now))):
        yield from moves
        return
    before = _interference(state, job, now)
    old = state.unseat(job)
    assert old is not None
    choice = None if seat.is_dedicated else _less_disturbed(state, job, before, now)
    if choice is None or choice.group == old.id:
        _stay(state, job, seat, now)
    else:
        yield from _move(state, job, old, choice, now)


def join_others(state: ClusterState, job: JobRecord, now: float) -> Iterator[do.Command]:
    """Move a job that is alone on its group to one that others use, if it fits there. Its own group is empty then."""
    assert job.seat is not None
    old = state.groups[job.seat.group]
    choice = _beside_others(state, job, old, now)
    if choice is not None:
        state.unseat(job)
        for name in [name for name, claimed in state.claims.items() if claimed == choice.group]:
            state.claims[name] = old.id
            state.openings.note(choice.group)
        yield from _move(state, job, old, choice, now)


def _move(state: ClusterState, job: JobRecord, old: GroupRecord, choice: Choice, now: float) -> Iterator[do.Command]:
    state.seat(job, choice, now)
    job.last_rest = 0
    yield do.Move(job=job.id, source=old.id, target=choice.group, shift_s=choice.shift_s)
    yield from phases.leave(state, old, job.id, now)
    yield from phases.ask(state, job, now)


def _beside_others(state: ClusterState, job: JobRecord, old: GroupRecord, now: float) -> Choice | None:
    """The best place on a group that others use, for a job that leaves its group empty.

    It may be a group that a waiting job has claimed, if that one can have the empty group instead: it is free earlier.
    """
    claimed = {group for name, group in state.claims.items() if not fits(old.facts, state.jobs[name].spec.state)}
    used = [
        group
        for group in state.groups_for(job, now, with_claimed=True)
        if group.jobs and group.id not in claimed and group is not old
    ]
    return choose(job, used, state.timetable, state.rules, now)


def _less_disturbed(state: ClusterState, job: JobRecord, before: float, now: float) -> Choice | None:
    """The best place, if the job suffers enough less from others there than ``before``."""
    choice = choose(job, state.groups_for(job, now), state.timetable, state.rules, now)
    return choice if choice is not None and before - choice.interference >= state.rules.min_gain else None


def _stay(state: ClusterState, job: JobRecord, seat: Seat, now: float) -> None:
    """The job keeps its group. Its slots are planned again where its phases really are; if they do not fit there, it
    keeps the old ones."""
    since, late_s = job.seated_at, job.late_s
    for choice in (_where_it_is(state, job, seat, now), _as_before(seat)):
        try:
            state.seat(job, choice, now)
        except ValueError:
            continue  # not all of these slots are free
        break
    job.seated_at, job.late_s = since, late_s


def _where_it_is(state: ClusterState, job: JobRecord, seat: Seat, now: float) -> Choice:
    """The job's slots, such that its present phase is where it was asked for."""
    rules, is_alone = state.rules, not state.groups[seat.group].jobs
    if job.trace is None or job.duty > rules.max_duty or rules.policy is Policy.ISOLATED:
        return Choice(group=seat.group, is_dedicated=is_alone)
    if rules.policy is Policy.PACK:
        return Choice(group=seat.group)
    footprint = Footprint.of(job.trace, rules.slot_s, rules.horizon_slots)
    if footprint is None:
        return Choice(group=seat.group, is_dedicated=is_alone)
    asked_at = now if job.asked_at is None else job.asked_at
    # The phase that was asked for last belongs to this segment, or to the one before it if it is complete.
    number = (job.num_phases if job.phase is not None else job.num_phases - 1) % len(job.trace.segments)
    start = slot_of(asked_at - job.trace.segments[number].offset_s, rules)
    return Choice(group=seat.group, footprint=footprint, start_slot=start % rules.horizon_slots)


def _as_before(seat: Seat) -> Choice:
    if seat.reservation is None:
        return Choice(group=seat.group, is_dedicated=seat.is_dedicated)
    placed = seat.reservation.placement
    return Choice(group=seat.group, footprint=placed.footprint, start_slot=placed.start)


def _interference(state: ClusterState, job: JobRecord, now: float) -> float:
    """What the job suffers from the others of its group, as it is planned and as it was seen."""
    assert job.seat is not None
    if job.seat.reservation is None:
        return job.wait_share(now)
    placed = job.seat.reservation.placement
    others = (other for other in state.timetable.residents(job.seat.group) if other is not placed)
    guard = round(state.rules.guard_s / state.rules.slot_s)
    return max(interference(placed, others, guard), job.wait_share(now))


def _observed(job: JobRecord) -> DemandTrace | None:
    """The trace with segments as many times as long as nine of ten of the newest phases were."""
    if job.trace is None or not job.ratios:
        return job.trace
    factor = sorted(job.ratios)[int(0.9 * (len(job.ratios) - 1))]
    if factor <= 0:
        return job.trace
    at, segments, end_before = 0.0, [], 0.0
    for segment in job.trace.segments:
        at += max(0.0, segment.offset_s - end_before)
        duration_s = segment.duration_s * factor
        segments.append(Segment(offset_s=at, duration_s=duration_s, slack_s=segment.slack_s))
        at, end_before = segments[-1].end_s, segment.end_s
    # Rounding may put the last end behind the period.
    period_s = at + max(0.0, job.trace.period_s - end_before)
    return DemandTrace(period_s=period_s, segments=tuple(segments), steps=job.trace.steps)


def _group_of(state: ClusterState, event: ev.NodeLost | ev.NodeReturned) -> GroupRecord | None:
    group = state.group_of_node.get(event.node)
    return None if group is None else state.groups[group]
