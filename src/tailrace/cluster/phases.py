"""Who computes on a node group: phases asked for, granted, ended; state loaded and offloaded.

Each node group has a queue of its own that decides (``arbitration/group_queue.py``). Here its questions are answered,
and what it decides is noted in the job's record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster.arbitration.requests import Request
from tailrace.cluster.group_record import GroupRecord
from tailrace.cluster.ids import JobId
from tailrace.cluster.job_record import JobRecord, PhaseInProgress
from tailrace.cluster.state import ClusterState


def phase_asked(state: ClusterState, event: ev.PhaseAsked, now: float) -> Iterator[do.Command]:
    job = state.jobs.get(event.job)
    if job is None or not job.is_live or job.phase is not None or not _is_sound(event):
        state.num_ignored += 1
        return
    job.phase = PhaseInProgress(asked_at=now, operations_s=event.operations_s, slack_s=event.slack_s)
    if not job.is_between_operations:
        job.asked_at = now
    yield from ask(state, job, now)


def _is_sound(event: ev.PhaseAsked) -> bool:
    numbers = (*event.operations_s, event.slack_s)
    return bool(event.operations_s) and all(math.isfinite(number) and number >= 0 for number in numbers)


def ask(state: ClusterState, job: JobRecord, now: float) -> Iterator[do.Command]:
    """Queue the job's phase on its node group, if it has one."""
    if job.seat is None or job.phase is None:
        return
    request = Request(
        job=job.id,
        tenant=job.tenant,
        asked_at=job.phase.asked_at,
        operations_s=job.phase.operations_s,
        slack_s=job.phase.slack_s,
        state=job.spec.state,
    )
    group = state.groups[job.seat.group]
    group.queue.expect(_latest_starts(group, now))
    yield from noted(state, group.queue.ask(request, now), now)


def phase_ended(state: ClusterState, event: ev.PhaseEnded, now: float) -> Iterator[do.Command]:
    job = state.jobs.get(event.job)
    if job is None or job.seat is None or job.phase is None or job.phase.lease is None:
        state.num_ignored += 1
        return
    if event.lease not in (0, job.phase.lease):
        state.num_ignored += 1
        return
    group, phase = state.groups[job.seat.group], job.phase
    job.phase = None
    job.seconds_in_phase += event.seconds if math.isfinite(event.seconds) and event.seconds > 0 else 0.0
    job.is_between_operations = phase.num_granted < len(phase.operations_s) and not event.failed
    if not job.is_between_operations:
        _complete(state, job, event)
    group.queue.expect(_latest_starts(group, now))
    yield from noted(state, group.queue.ended(job.id, event.seconds, event.failed, event.next_in_s, now), now)


def _complete(state: ClusterState, job: JobRecord, event: ev.PhaseEnded) -> None:
    seconds, job.seconds_in_phase = job.seconds_in_phase, 0.0
    late_s, job.late_in_phase_s = job.late_in_phase_s, 0.0
    if not event.failed:
        job.note_phase(seconds, late_s, _seconds_off(state, job), state.rules.drift)
        state.to_refit |= {job.id} if job.num_drifted >= state.rules.drift_cycles else set()


def _seconds_off(state: ClusterState, job: JobRecord) -> float:
    """How far from its planned place the job asked for its present phase."""
    if job.seat is None or job.seat.reservation is None or job.segment is None or job.asked_at is None:
        return 0.0
    placed, slot_s = job.seat.reservation.placement, state.rules.slot_s
    period_s = placed.footprint.period * slot_s
    off_s = (job.asked_at - placed.start * slot_s - job.segment.offset_s) % period_s
    return min(off_s, period_s - off_s)


def transferred(state: ClusterState, event: ev.TransferMeasured, now: float) -> Iterator[do.Command]:
    group = state.groups.get(event.group)
    if group is None:
        state.num_ignored += 1
        return
    group.queue.expect(_latest_starts(group, now))
    yield from noted(state, group.queue.transferred(event, now), now)


def tick(state: ClusterState, now: float) -> Iterator[do.Command]:
    for group in state.groups.values():
        at = group.queue.wake_at()
        if at is not None and at <= now:
            group.queue.expect(_latest_starts(group, now))
            yield from noted(state, group.queue.tick(now), now)


def leave(state: ClusterState, group: GroupRecord, job: JobId, now: float) -> Iterator[do.Command]:
    group.queue.expect(_latest_starts(group, now))
    yield from noted(state, group.queue.leave(job, now), now)


def noted(state: ClusterState, commands: Iterable[do.Command], now: float) -> Iterator[do.Command]:
    """Number the leases among these commands, and note them in the records of their jobs."""
    for command in commands:
        if isinstance(command, do.GrantLease):
            job = state.jobs[command.job]
            assert job.phase is not None
            assert job.phase.lease is None
            state.num_leases += 1
            job.phase.lease, job.phase.num_granted = state.num_leases, command.num_operations
            late_s = max(0.0, now - job.phase.asked_at - job.phase.slack_s)
            job.late_s += late_s
            job.late_in_phase_s += late_s
            if command.group in state.calm_at:  # its share of waiting grew until now, and falls from now on
                state.calm_at[command.group] = state.groups[command.group].calm_from(state.rules, now)
            yield replace(command, lease=state.num_leases)
        else:
            yield command


def _latest_starts(group: GroupRecord, now: float) -> dict[JobId, float]:
    """For each job that does not wait or compute: when it must get the group at the latest to lose no time."""
    return {
        job.id: latest
        for job in group.jobs.values()
        if job.phase is None and (latest := job.latest_start(now)) is not None
    }
