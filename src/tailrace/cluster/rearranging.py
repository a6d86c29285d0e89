"""Jobs change their node group: after it was lost, after their first clean period, and when they have drifted.

A job moves only between two phases, and only if the other group is better by a margin, so that two jobs do not change
places for ever.
"""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster import phases
from tailrace.cluster.demand.trace import DemandTrace, Segment
from tailrace.cluster.group_record import GroupRecord
from tailrace.cluster.job_record import Displaced, JobRecord
from tailrace.cluster.jobs import Stage
from tailrace.cluster.placement import Choice, choose
from tailrace.cluster.planning.interference import interference
from tailrace.cluster.rules import Policy
from tailrace.cluster.state import ClusterState


def node_lost(state: ClusterState, event: ev.NodeLost, now: float) -> Iterator[do.Command]:
    """The node's group cannot be used. Its jobs lose what they computed since their last phase, and need another."""
    group = _group_of(state, event)
    if group is None or event.node in group.lost:
        state.num_ignored += 1
        return
    was_usable = group.is_usable
    group.lost.add(event.node)
    if not was_usable:
        return
    group.queue.lose(now)
    for job in list(group.jobs.values()):
        state.unseat(job)
        group.queue.leave(job.id, now)
        job.displaced = Displaced(group=group.id, at=now)
        job.withdraw_lease()
    state.timetable.lose(group.id)
    yield from ()


def node_returned(state: ClusterState, event: ev.NodeReturned, now: float) -> Iterator[do.Command]:
    group = _group_of(state, event)
    if group is None or event.node not in group.lost:
        state.num_ignored += 1
        return
    group.lost.discard(event.node)
    if group.is_usable:
        state.timetable.restore(group.id)
        yield from phases.noted(state, group.queue.restore(now), now)


def job_profiled(state: ClusterState, event: ev.JobProfiled, now: float) -> Iterator[do.Command]:
    """The demand of a job is known now, or known better."""
    job = state.jobs.get(event.job)
    if job is None or job.stage is Stage.ENDED:
        state.num_ignored += 1
        return
    job.trace, job.num_drifted = event.trace, 0
    if job.stage is Stage.PROFILING:
        job.stage = Stage.RUNNING
        job.wants_refit = state.rules.policy is not Policy.ISOLATED
    elif job.stage is Stage.RUNNING:
        job.wants_refit = job.seat is not None and not job.seat.is_dedicated
    yield from ()


def relocate(state: ClusterState, now: float) -> Iterator[do.Command]:
    """Jobs whose node group was lost get another one as soon as there is room."""
    displaced = [job for job in state.live() if job.displaced is not None]
    for job in sorted(displaced, key=lambda job: job.number):
        choice = choose(job, state.groups_for(job, now), state.timetable, state.rules, now)
        if choice is not None:
            assert job.displaced is not None
            source, job.displaced = job.displaced.group, None
            state.seat(job, choice)
            yield do.Move(job=job.id, source=source, target=choice.group, shift_s=choice.shift_s)
            yield from phases.ask(state, job, now)


def refit(state: ClusterState, now: float) -> Iterator[do.Command]:
    """Jobs that were profiled or have drifted are planned again, between two phases."""
    for job in list(state.live()):
        if job.num_drifted >= state.rules.drift_cycles:
            job.trace, job.num_drifted, job.wants_refit = _observed(job), 0, True
        if job.wants_refit and job.seat is not None and (job.phase is None or job.phase.lease is None):
            job.wants_refit = False
            yield from _refit(state, job, now)


def _refit(state: ClusterState, job: JobRecord, now: float) -> Iterator[do.Command]:
    seat = job.seat
    assert seat is not None
    assert job.trace is not None
    before = _interference(state, job, now)
    old = state.unseat(job)
    assert old is not None
    choice = choose(job, state.groups_for(job, now), state.timetable, state.rules, now)
    if choice is None or choice.group == old.id or not _is_better(state, job, seat.is_dedicated, choice, old, before):
        state.seat(job, _stay(state, job, old, choice, now))
        return
    state.seat(job, choice)
    yield do.Move(job=job.id, source=old.id, target=choice.group, shift_s=choice.shift_s)
    yield from phases.leave(state, old, job.id, now)
    yield from phases.ask(state, job, now)


def _stay(state: ClusterState, job: JobRecord, group: GroupRecord, choice: Choice | None, now: float) -> Choice:
    """The job keeps its group. Its slots are planned again if they fit."""
    if choice is not None and choice.group == group.id:
        return choice
    here = choose(job, [group], state.timetable, state.rules, now) if group.takes(job, state.rules, now) else None
    return here or Choice(group=group.id, is_dedicated=not group.jobs and state.rules.policy is Policy.ISOLATED)


def _is_better(
    state: ClusterState, job: JobRecord, was_dedicated: bool, choice: Choice, old: GroupRecord, before: float
) -> bool:
    """Is another group worth a move? It is, if a group becomes free by it, or if interference falls enough."""
    joins_others = bool(state.groups[choice.group].jobs)
    if was_dedicated:
        return joins_others
    return before - choice.interference >= state.rules.min_gain


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
    """The trace with segments as long as the newest phases were. Longer segments make the period longer."""
    if job.trace is None or not job.phase_seconds:
        return job.trace
    seconds = sorted(job.phase_seconds)[int(0.9 * (len(job.phase_seconds) - 1))]
    factor = seconds / max(segment.duration_s for segment in job.trace.segments)
    at, segments, end_before = 0.0, [], 0.0
    for segment in job.trace.segments:
        at += segment.offset_s - end_before
        duration_s = segment.duration_s * factor
        segments.append(Segment(offset_s=at, duration_s=duration_s, slack_s=segment.slack_s))
        at, end_before = at + duration_s, segment.end_s
    period_s = at + max(0.0, job.trace.period_s - end_before)  # rounding may put the last end after the period
    return DemandTrace(period_s=period_s, segments=tuple(segments), steps=job.trace.steps)


def _group_of(state: ClusterState, event: ev.NodeLost | ev.NodeReturned) -> GroupRecord | None:
    group = state.group_of_node.get(event.node)
    return None if group is None else state.groups[group]
